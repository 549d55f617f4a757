"""The arms of the evidence: what vLLM's `LLM` is given for each. All share every setting but their strategy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.plugins.vllm.refusals import SCHEDULERS, WORKER


@dataclass(frozen=True)
class Pair:
    """A model pair on disk and what an engine of it needs."""

    target: Path
    dflash: Path
    dtype: str
    dummy: bool  # weights are random: the files hold a configuration alone
    max_model_len: int
    kv_gib: float
    memory: float  # share of the GPU that one engine may take at its start


@dataclass(frozen=True)
class Arm:
    """``nodes`` None: autoregressive. ``tree`` None: stock DFlash of a block of ``nodes + 1``."""

    name: str
    nodes: int | None = None
    tree: dict[str, Any] | None = None
    graphs: bool = True
    asynchronous: bool = True
    in_process: bool = False  # scheduler and model in the asking process: for a profile
    stock: bool = False  # the engine's own choice of model runner and attention, beside those that all others share

    @property
    def verify_width(self) -> int:
        return 1 + (self.nodes or 0)


def arguments(arm: Arm, pair: Pair, batches: list[int]) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM`."""
    sizes = [arm.verify_width * batch for batch in batches]
    settings: dict[str, Any] = {
        "model": str(pair.target),
        "dtype": pair.dtype,
        "max_model_len": pair.max_model_len,
        "max_num_seqs": max(batches),
        "max_num_batched_tokens": 16384,
        "gpu_memory_utilization": pair.memory,
        "kv_cache_memory_bytes": int(pair.kv_gib * 2**30),
        "enable_prefix_caching": False,
        "async_scheduling": arm.asynchronous,
        "generation_config": "vllm",
        "disable_log_stats": False,
        "skip_tokenizer_init": True,
        "seed": 0,
    }
    if not arm.stock:
        settings["attention_backend"] = "TRITON_ATTN" if arm.tree is None else "CUSTOM"
    if arm.graphs:
        settings["compilation_config"] = {
            "cudagraph_mode": "FULL_AND_PIECEWISE",
            "cudagraph_capture_sizes": sizes,
            "max_cudagraph_capture_size": max(sizes),
        }
    else:
        settings["enforce_eager"] = True
    if pair.dummy:
        settings["load_format"] = "dummy"
    if arm.nodes is not None:
        settings["speculative_config"] = {
            "method": "dflash",
            "model": str(pair.dflash),
            "num_speculative_tokens": arm.nodes,
        }
        if not arm.stock:
            settings["speculative_config"]["attention_backend"] = "TRITON_ATTN"
    if arm.tree is not None:
        settings |= {
            "worker_cls": WORKER,
            "scheduler_cls": SCHEDULERS[arm.asynchronous],
            "additional_config": {"ddbench": arm.tree},
        }
    return settings
