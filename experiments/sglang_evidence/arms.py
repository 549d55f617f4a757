"""The arms of the evidence: what `sglang.Engine` is given for each. All share every setting but their strategy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runners.sglang.speculation import Draft, environment, server_arguments

BLOCK = 16  # of the tiny pair's DFlash drafter, and of the one of Qwen3-8B dimensions


@dataclass(frozen=True)
class Pair:
    """A model pair on disk and what an engine of it needs.

    ``tokens``: the pool of keys and values, in tokens, the same in all arms. ``memory``: share of the GPU's free memory
    at the start that weights and pool may take; a wide one, since several engines share the GPU and the pool is named.
    """

    target: Path
    dflash: Path
    eagle: Path
    dtype: str
    dummy: bool  # weights are random: the files hold a configuration alone
    context: int
    tokens: int
    memory: float = 0.85


@dataclass(frozen=True)
class Arm:
    """One engine. ``nodes`` is the verify width less one; ``extra`` goes to the engine as it is, and ``env`` around it.

    ``hooks`` names what `inside.py` changes in the engine's scheduler processes, for example ``float32``. ``ranks`` is
    the tensor parallelism: as many GPUs, one process each.
    """

    name: str
    strategy: str = "autoregressive"
    nodes: int | None = None
    width: int | None = None
    depth: int | None = None
    block: int = BLOCK
    backend: str = "triton"
    graphs: bool = True
    overlap: bool = True
    radix: bool = False
    ranks: int = 1
    hooks: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def verify_width(self) -> int:
        return 1 + (self.nodes or 0)


def draft_of(arm: Arm, pair: Pair) -> Draft | None:
    """What an arm drafts; None for autoregressive decoding."""
    if arm.strategy == "autoregressive":
        return None
    drafter = pair.eagle if arm.strategy == "eagle" else pair.dflash
    block = None if arm.strategy == "eagle" else arm.block
    depth = arm.nodes if arm.strategy == "dflash" else arm.depth
    return Draft(arm.strategy, arm.width, depth, arm.nodes, block, str(drafter), backend=arm.backend)


def arguments(arm: Arm, pair: Pair, batches: list[int]) -> dict[str, Any]:
    """Keyword arguments of `sglang.Engine`; graphs are captured for exactly ``batches``."""
    settings: dict[str, Any] = {
        "model_path": str(pair.target),
        "dtype": pair.dtype,
        "context_length": pair.context,
        "max_total_tokens": pair.tokens,
        "max_running_requests": max(batches),
        "mem_fraction_static": pair.memory,
        "attention_backend": arm.backend,
        "page_size": 1,
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "min_free_slots_delay": 1,
        "disable_radix_cache": not arm.radix,
        "disable_overlap_schedule": not arm.overlap,
        "disable_prefill_cuda_graph": True,
        "disable_decode_cuda_graph": not arm.graphs,
        "cuda_graph_bs_decode": sorted(batches),
        "skip_tokenizer_init": True,
        "random_seed": 1,
        "sleep_on_idle": True,  # an engine that waits for its turn leaves its core to the one that is timed
        "log_level": "info",
    }
    if pair.dummy:
        settings["load_format"] = "dummy"
    if arm.ranks > 1:  # sums over NCCL alone: the law of the tree is shown, not the fastest way to add
        settings |= {"tp_size": arm.ranks, "disable_custom_all_reduce": True}
    draft = draft_of(arm, pair)
    if draft is not None:
        settings |= server_arguments(draft)
        if pair.dummy:
            settings["speculative_draft_load_format"] = "dummy"
    return settings | dict(arm.extra)


def variables(arm: Arm, pair: Pair) -> dict[str, str]:
    """Environment variables that the plug-in and `inside.py` read."""
    draft = draft_of(arm, pair)
    own = environment(draft) if draft is not None else {}
    hooks = {"DDBENCH_INSIDE": ",".join(arm.hooks)} if arm.hooks else {}
    return {**own, **hooks, **arm.env}
