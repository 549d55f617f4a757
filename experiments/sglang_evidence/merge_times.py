"""Round times, speeds and memory of the merged evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ddbench.errors import ConfigError
from experiments.evidence.timing import pooled

Shards = dict[str, dict[str, Any]]
Table = dict[str, dict[str, dict[str, Any]]]  # by arm and batch size
TREE = ("build", "lay_out", "walk", "move_kv")


def starts(shards: Shards, name: str) -> list[dict[str, Any]]:
    """Every start of a shard: its own file, and those of restarts."""
    again = re.compile(rf"{name}(_\d+)?")
    return [one for key, one in shards.items() if again.fullmatch(key)]


def rounds(shards: Shards) -> dict[str, Any]:
    """Round times and ratios by strategy, verify width and backend (in the arm's name) and batch size."""
    found = [one for name, one in shards.items() if name.startswith("rounds_")]
    times = table(one["round_ms"] for one in found)
    ratios = table(one.get("round_ratio_vs_dflash", {}) for one in found)
    memory: dict[str, dict[str, Any]] = {}
    for one in [*found, shards.get("memory", {})]:
        memory |= {name: each for name, each in one.get("memory", {}).items() if each["measured_gib"] is not None}
    return {
        "round_ms": times,
        "round_ratio_vs_dflash": medians({arm: by for arm, by in ratios.items() if arm.startswith("ddtree")}),
        "round_ratio_vs_dflash_eagle": medians({arm: by for arm, by in ratios.items() if arm.startswith("eagle")}),
        "round_ratio_spread": ratios,
        "memory_predicted_gib": {name: one["predicted_gib"] for name, one in memory.items()},
        "memory_measured_gib": {name: one["measured_gib"] for name, one in memory.items()},
        "stages_ms": shards.get("stages", {}).get("stages_ms"),
        "tree_overhead_share": _overhead(shards, times),
    }


def speed(shards: Shards) -> dict[str, Any]:
    """Tokens a second over the chain's, and steps, on the tiny pair; and what was pinned at the large one."""
    found = starts(shards, "tiny_speed")
    ratios = medians(table(one["ratio_vs_dflash"] for one in found))
    synthetic = shards.get("synthetic", {})
    return {
        "tokens_per_s_ratio_vs_dflash": ratios or None,
        "tiny_step_ms": medians(table(one.get("step_ms", {}) for one in found)) or None,
        "tokens_per_s_synthetic": synthetic.get("tokens_per_s"),
        "synthetic_ratio_vs_dflash": synthetic.get("ratio_vs_dflash"),
        "crossover_batch": synthetic.get("crossover_batch"),
    }


def table(found: Iterable[dict[str, dict[str, Any]]]) -> Table:
    """What several starts have by batch size and arm, pooled, by arm and batch size.

    Raises:
        ConfigError: a start that did not keep its repeats, beside another of the same arm.
    """
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for one in found:
        for batch, arms in one.items():
            for arm, row in arms.items():
                rows.setdefault(arm, {}).setdefault(batch, []).append(row)
    try:
        return {arm: {batch: pooled(each) for batch, each in by.items()} for arm, by in rows.items()}
    except ValueError as error:
        raise ConfigError("folder", None, f"shards of a version that keeps every repeat: {error}") from None


def medians(found: Table) -> dict[str, dict[str, float]]:
    return {arm: {batch: row["median"] for batch, row in by.items()} for arm, by in found.items()}


def _overhead(shards: Shards, times: Table) -> dict[str, dict[str, float]] | None:
    """Share of a tree's round on the device of build, layout (with the mask), walk and KV moves, by verify width."""
    kernels = shards.get("kernels")
    if kernels is None:
        return None
    shares: dict[str, dict[str, float]] = {}
    for arm, by_batch in times.items():
        width = arm.removeprefix("ddtree_")
        if not arm.startswith("ddtree_") or not width.isdigit():
            continue
        for batch, row in by_batch.items():
            own = [
                each["ms"]
                for each in kernels["rows"]
                if each["kernel"] in TREE and str(each.get("width")) == width and str(each["batch"]) == batch
            ]
            if len(own) == len(TREE):
                shares.setdefault(width, {})[batch] = round(sum(own) / row["median"], 5)
    return shares
