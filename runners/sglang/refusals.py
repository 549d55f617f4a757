"""What SGLang cannot run, and why: said before anything starts, and never run as something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddbench.plugins.sglang.backends import TABLE, usable, why_not
from runners.sglang.flags import DEFAULT
from runners.sglang.speculation import MOST_NODES

CHAIN_ONLY = (
    "SGLang's DFlash verifies a chain: told of a width above 1 it overrides it to 1 and runs the chain. Trees of a "
    "DFlash drafter are strategy=ddtree"
)
EAGLE_BACKENDS = ("triton", "flashinfer", "fa3")  # that verify an EAGLE tree
LORA = ("--enable-lora", "--lora-paths")


@dataclass(frozen=True)
class Asked:
    """One arm, as far as that decides whether it can be run. ``block_size``: of the DFlash drafter, anchor counted."""

    strategy: str
    width: int | None
    depth: int | None
    nodes: int | None
    block_size: int | None
    attention: str  # of the target: full or hybrid
    version: str | None  # of SGLang; None: not known
    flags: dict[str, Any]  # resolved, see runners.sglang.flags


def refuse(asked: Asked) -> str | None:
    """Why SGLang cannot run an arm; None if it can."""
    rules = {"dflash": _dflash, "eagle": _eagle, "ddtree": _ddtree}
    rule = rules.get(asked.strategy)
    return None if rule is None else extra(asked.flags, asked.strategy) or rule(asked)


def extra(flags: dict[str, Any], strategy: str = "ddtree") -> str | None:
    """An arm drafts what its shape says: what SGLang is told beside it would make another arm of it."""
    given = list(flags.get("extra_args") or ())
    for index, word in enumerate(given):
        name, _, value = word.partition("=")
        if not name.startswith("--speculative-"):
            continue
        value = value or (given[index + 1] if index + 1 < len(given) else "")
        if name == "--speculative-eagle-topk" and strategy == "dflash":
            if value == "1":
                continue  # what it is anyway
            return CHAIN_ONLY
        return f"{name} changes what the arm drafts; width, depth and nodes say that (engine.flags.extra_args)"
    return None


def _dflash(asked: Asked) -> str | None:
    if asked.width not in (None, 1) or asked.nodes not in (None, asked.depth):
        return CHAIN_ONLY
    whole = asked.block_size - 1 if asked.block_size else None
    if whole is None or asked.depth in (None, whole):
        return None
    return (
        f"SGLang drafts and verifies one number of tokens: a chain of {asked.depth} would give the drafter a block of "
        f"{asked.depth + 1 if asked.depth else 1}, and it was trained on {asked.block_size}. Only depth {whole} is its "
        "own chain"
    )


def _eagle(asked: Asked) -> str | None:
    width, depth, nodes = asked.width, asked.depth, asked.nodes
    if width is None or depth is None or nodes is None:
        return "SGLang needs depth, width and nodes of an EAGLE tree"
    if width == 1:
        if nodes != depth:
            return f"at width 1 SGLang verifies all {depth} drafted tokens: nodes must be {depth}, not {nodes}"
        return None
    most = width + (depth - 1) * width * width
    if nodes > most:
        return f"nodes {nodes} > {most}: an EAGLE tree of depth {depth} and width {width} drafts no more"
    backend = asked.flags.get("attention_backend")
    if backend not in (None, DEFAULT, *EAGLE_BACKENDS):
        return (
            f"{backend} verifies no EAGLE trees: engine.flags.attention_backend must be {' or '.join(EAGLE_BACKENDS)}"
        )
    return None


def _ddtree(asked: Asked) -> str | None:
    flags = asked.flags
    if asked.nodes is not None and asked.nodes > MOST_NODES:
        return f"nodes {asked.nodes} > {MOST_NODES}: the plug-in verifies {MOST_NODES + 1} tokens a sequence"
    if asked.version is not None and asked.version not in TABLE:
        return f"the plug-in knows SGLang {' and '.join(TABLE)}, not {asked.version}"
    if flags.get("attached"):
        return None  # its settings are not known
    if asked.attention != "full" and flags["prefix_cache"]:
        return "recurrent states of prefixes are not cached beside trees (engine.flags.prefix_cache)"
    backend = flags["attention_backend"]
    why = why_not(asked.version, backend) if asked.version is not None else None
    if why is not None and asked.version is not None:
        return f"{backend}: {why} (engine.flags.attention_backend: {' or '.join(usable(asked.version))})"
    rules = (
        (flags["page_size"] != 1, "a tree's path is moved token by token", "page_size"),
        (any(each in LORA for each in flags["extra_args"]), "the plug-in refuses LoRA", "extra_args"),
    )
    for broken, reason, name in rules:
        if broken:
            return f"{reason} (engine.flags.{name})"
    return None


def is_default(flags: dict[str, Any]) -> bool:
    """Whether an arm leaves attention, pages and scheduling to SGLang."""
    return bool(flags.get("attention_backend") == DEFAULT)
