"""What vLLM cannot run, and why: said before anything starts, and never run as something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddbench.plugins.vllm.options import MOST_NODES
from runners.vllm.flags import DEFAULT

EAGLE_TREES = (
    "vLLM has no EAGLE trees since 0.21 (and had no tree verification before); its drafter cannot be expanded through "
    "a plug-in door. A chain is width 1 with nodes = depth"
)
CPU_SAMPLING = (
    "vLLM's CPU build (0.32, and 0.33 as read) spreads temperature, top-p and top-k of speculative requests into a "
    "copy that is thrown away: sampling would follow memory that nobody wrote"
)
HYBRID_TREES = "the plug-in runs full attention only: siblings of a tree would share a hybrid's recurrent state"
NO_TORCHVISION = (
    "needs torchvision in engine.python's environment: vLLM's file of the Qwen3.5 and 3.6 forms imports it, for text "
    "alone too (docs/hybrid.md)"
)
LORA = ("--enable-lora", "--lora-modules")


@dataclass(frozen=True)
class Asked:
    """One arm, as far as that decides whether it can be run. ``block_size``: of the DFlash drafter, anchor counted."""

    strategy: str
    width: int | None
    depth: int | None
    nodes: int | None
    block_size: int | None
    attention: str  # of the target: full or hybrid
    flags: dict[str, Any]  # resolved, see runners.vllm.flags
    lacking: str | None = None  # why the environment cannot load the target, whatever the strategy


def refuse(asked: Asked) -> str | None:
    """Why vLLM cannot run an arm; None if it can."""
    if asked.strategy == "ddtree" and asked.attention != "full":
        return HYBRID_TREES
    if asked.lacking is not None:
        return asked.lacking
    if asked.strategy == "dflash":
        return _dflash(asked)
    if asked.strategy == "eagle":
        return None if asked.width == 1 and asked.nodes == asked.depth else EAGLE_TREES
    if asked.strategy == "ddtree":
        return _ddtree(asked)
    return None


def _dflash(asked: Asked) -> str | None:
    whole = asked.block_size - 1 if asked.block_size else None
    if whole is None or asked.depth in (None, whole):
        return None
    return (
        f"vLLM drafts and verifies one number of tokens: a chain of {asked.depth} would give the drafter a block of "
        f"{asked.depth + 1 if asked.depth else 1}, and it was trained on {asked.block_size}. Only depth {whole} is its "
        "own chain"
    )


def _ddtree(asked: Asked) -> str | None:
    flags = asked.flags
    if asked.nodes is not None and asked.nodes > MOST_NODES:
        return f"nodes {asked.nodes} > {MOST_NODES}: the tree attention takes {MOST_NODES + 1} rows a sequence"
    if flags.get("attached"):
        return None  # its settings are not known
    rules = (
        (flags["model_runner"] != "V1", "the plug-in is for vLLM's V1 model runner", "model_runner"),
        (flags["tensor_parallel"] > 1, "the plug-in runs on one GPU in this version", "tensor_parallel"),
        (
            flags["attention_backend"] not in ("TRITON_ATTN", "CPU_ATTN"),
            "tree attention is a Triton kernel: the other arms are to use TRITON_ATTN too",
            "attention_backend",
        ),
        (flags["kv_cache_dtype"] != "auto", "the plug-in keeps keys and values in the model's dtype", "kv_cache_dtype"),
        (any(each in LORA for each in flags["extra_args"]), "the plug-in refuses LoRA", "extra_args"),
    )
    for broken, reason, name in rules:
        if broken:
            return f"{reason} (engine.flags.{name})"
    return None


def is_default(flags: dict[str, Any]) -> bool:
    """Whether an arm leaves runner, attention and scheduling to vLLM."""
    return bool(flags.get("model_runner") == DEFAULT)
