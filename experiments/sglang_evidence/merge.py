"""The shards' figures as one evidence file: the keys that readers look for, each derived from what a shard stored."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.sglang_evidence.counts import against

Shards = dict[str, dict[str, Any]]
NOTES = (
    "One GPU; a shard is one start of its engines, and a second start of a shard has the suffix _2. round_ms: Qwen3-8B "
    "dimensions, random weights, 256-token prompts, median over interleaved repeats. A ratio of round times is the "
    "median over all repeats of all starts, each with the chain's own repeat beside it. tokens_per_s_synthetic has "
    "accepted lengths pinned to published ones and says nothing of real text."
)
REFERENCE = {"ddtree_k1": "ddtree_spine"}  # arms that the reference engine calls otherwise
TREE = ("build", "lay_out", "walk", "move_kv")


def merge(folder: Path, output: Path) -> Path:
    """Writes ``output`` from the shards that lie in ``folder``. Raises ConfigError when there is none."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not records:
        raise ConfigError("folder", str(folder), "a folder with the files of at least one shard")
    shards: Shards = {name: record["measured"] for name, record in records.items()}
    on_gpu = next((record for record in records.values() if record["gpu"]), records[next(iter(records))])
    commands = [record["command"] for record in records.values()]
    measured = {**_rounds(shards), **_correctness(shards), **_speed(shards)}
    record = {
        "command": "; ".join([*commands, "python -m ddbench experiment=sglang_evidence shard=merge"]),
        "date": max(one["date"] for one in records.values()),
        "gpu": on_gpu["gpu"],
        "driver": on_gpu["driver"],
        "versions": on_gpu["versions"],
        "measured": measured,
        "notes": NOTES,
        "shards": shards,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1) + "\n")
    return output


def starts(shards: Shards, name: str) -> list[dict[str, Any]]:
    """Every start of a shard: its own file, and those of restarts."""
    again = re.compile(rf"{name}(_\d+)?")
    return [one for key, one in shards.items() if again.fullmatch(key)]


def _rounds(shards: Shards) -> dict[str, Any]:
    """Round times and ratios by strategy, verify width and backend (in the arm's name) and batch size."""
    found = [one for name, one in shards.items() if name.startswith("rounds_")]
    times: dict[str, dict[str, list[dict[str, Any]]]] = {}
    ratios: dict[str, dict[str, list[float]]] = {}
    memory: dict[str, dict[str, Any]] = {}
    for one in found:
        for batch, arms in one["round_ms"].items():
            for arm, row in arms.items():
                times.setdefault(arm, {}).setdefault(batch, []).append(row)
        for batch, arms in one.get("round_ratio_vs_dflash", {}).items():
            for arm, row in arms.items():
                ratios.setdefault(arm, {}).setdefault(batch, []).append(row["median"])
        memory |= one.get("memory", {})
    memory |= shards.get("memory", {}).get("memory", {})
    measured = {name: one for name, one in memory.items() if one["measured_gib"] is not None}
    result: dict[str, Any] = {
        "round_ms": {arm: {batch: pooled(rows) for batch, rows in by.items()} for arm, by in times.items()},
        "round_ratio_vs_dflash": {arm: _medians(by) for arm, by in ratios.items() if arm.startswith("ddtree")},
        "round_ratio_vs_dflash_eagle": {arm: _medians(by) for arm, by in ratios.items() if arm.startswith("eagle")},
        "memory_predicted_gib": {name: one["predicted_gib"] for name, one in measured.items()},
        "memory_measured_gib": {name: one["measured_gib"] for name, one in measured.items()},
        "stages_ms": shards.get("stages", {}).get("stages_ms"),
        "tree_overhead_share": _overhead(shards, result_times(times)),
    }
    return result


def pooled(rows: list[dict[str, Any]]) -> dict[str, float]:
    """One median over the starts, with the whole range and all repeats counted."""
    return {
        "median": round(statistics.median(row["median"] for row in rows), 4),
        "low": min(row["low"] for row in rows),
        "high": max(row["high"] for row in rows),
        "n": sum(row["n"] for row in rows),
        "starts": len(rows),
    }


def result_times(times: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, dict[str, float]]:
    """Median milliseconds by arm and batch size."""
    return {arm: {batch: pooled(rows)["median"] for batch, rows in by.items()} for arm, by in times.items()}


def _medians(by_batch: dict[str, list[float]]) -> dict[str, float]:
    return {batch: round(statistics.median(values), 4) for batch, values in by_batch.items()}


def _overhead(shards: Shards, times: dict[str, dict[str, float]]) -> dict[str, dict[str, float]] | None:
    """Share of a tree's round on the device of build, layout (with the mask), walk and KV moves, by verify width."""
    kernels = shards.get("kernels")
    if kernels is None:
        return None
    shares: dict[str, dict[str, float]] = {}
    for arm, by_batch in times.items():
        width = arm.removeprefix("ddtree_")
        if not arm.startswith("ddtree_") or not width.isdigit():
            continue
        for batch, ms in by_batch.items():
            own = [
                row["ms"]
                for row in kernels["rows"]
                if row["kernel"] in TREE and str(row.get("width")) == width and str(row["batch"]) == batch
            ]
            if len(own) == len(TREE):
                shares.setdefault(width, {})[batch] = round(sum(own) / ms, 5)
    return shares


def _correctness(shards: Shards) -> dict[str, Any]:
    """Identity, acceptance, pairs that must agree, node logits, law and stress."""
    checks = {name: one for name, one in shards.items() if name.startswith("tiny_checks")}
    result: dict[str, Any] = {}
    if checks:
        main = checks.get("tiny_checks_float32") or next(iter(checks.values()))
        chain = main.get("pairs", {}).get("ddtree_k1=dflash", {})
        result = {
            "greedy_identity_share": {name: _identity(one) for name, one in checks.items()},
            "greedy_unexplained": {name: _unexplained(one) for name, one in checks.items()},
            "threshold_logits": main["threshold_logits"],
            "acceptance_length": _acceptance(shards, checks),
            "k1_identical_to_dflash": bool(chain) and all(one["unexplained"] == 0 for one in chain.values()),
            "k1_equal_acceptance": bool(chain) and main["histogram"]["ddtree_k1"] == main["histogram"]["dflash"],
            "k1_share": {batch: one["share"] for batch, one in chain.items()},
            "pairs": {name: one.get("pairs") for name, one in checks.items()},
            "against_reference": _against(shards, checks),
        }
    law = shards.get("law", {}).get("laws", {})
    if law:
        level = shards["law"]["level"]
        result["t1_chi_square_p"] = {name: tests["ddtree"]["p"] for name, tests in law.items() if "ddtree" in tests}
        planted = [tests["planted"]["p"] for tests in law.values() if "planted" in tests]
        result["t1_planted_rejected"] = bool(planted) and all(p < level for p in planted)
        result["t1_level"] = level
    result["node_logits"] = {
        name: one["backends"] for name, one in shards.items() if name.startswith("node_logits")
    } or None
    result["stress"] = shards.get("stress", {}).get("arms")
    return result


def _acceptance(shards: Shards, checks: Shards) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in checks.values():
        engine = f"sglang {one['dtype']}"
        found |= {f"{engine} {arm}": by for arm, by in one["acceptance_length"].items() if arm != "autoregressive"}
    reference = shards.get("reference", {})
    return found | {f"reference {arm}": one["acceptance_length"] for arm, one in reference.items()}


def _against(shards: Shards, checks: Shards) -> dict[str, Any] | None:
    """Outputs and rounds prompt by prompt beside the reference engine's, by shard and arm, at the smallest batch."""
    reference = shards.get("reference", {})
    found: dict[str, Any] = {}
    for name, one in checks.items():
        for arm, batches in one.get("by_prompt", {}).items():
            theirs = reference.get(REFERENCE.get(arm, arm), {}).get("by_prompt")
            ours = batches[min(batches, key=int)]
            if theirs is not None and len(theirs) == len(ours):
                found.setdefault(name, {})[arm] = against(ours, theirs)
    return found or None


def _identity(shard: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {arm: {batch: one["share"] for batch, one in by.items()} for arm, by in shard.get("identity", {}).items()}


def _unexplained(shard: dict[str, Any]) -> int:
    return sum(one["unexplained"] for by in shard.get("identity", {}).values() for one in by.values())


def _speed(shards: Shards) -> dict[str, Any]:
    """Ratios on the tiny pair: the median over all starts, with the range of their medians."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in starts(shards, "tiny_speed"):
        for batch, arms in one["ratio_vs_dflash"].items():
            for arm, row in arms.items():
                found.setdefault(batch, {}).setdefault(arm, []).append(row["median"])
    synthetic = shards.get("synthetic", {})
    return {
        "tokens_per_s_ratio_vs_dflash": {batch: _medians(arms) for batch, arms in found.items()} or None,
        "tokens_per_s_synthetic": synthetic.get("tokens_per_s"),
        "synthetic_ratio_vs_dflash": synthetic.get("ratio_vs_dflash"),
        "crossover_batch": synthetic.get("crossover_batch"),
    }
