"""The shards' figures as one evidence file: the keys that readers look for, each derived from what a shard stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.evidence.identity import same_but_for_ties, unexplained

Shards = dict[str, dict[str, Any]]
NOTES = (
    "One machine a shard. A ratio of round times is null where a quartile of either's repeats lies more than a tenth "
    "from the median (shards without quartiles: a repeat more than a quarter), or where the shard is missing. "
    "round_ms: Qwen3-8B dimensions, random weights, 256-token prompts."
)
FIRST_THRESHOLD = 0.5  # logits, of both dtypes: what shards that name none were judged by
SMALL = ("build", "positions", "walk", "move_kv", "gather")
LOOSE, LOOSE_QUARTILE = 0.25, 0.1  # a median whose repeats, or their quartiles, lie further from it says nothing


def merge(folder: Path, output: Path) -> Path:
    """Writes ``output`` from the shards that lie in ``folder``. Raises ConfigError when there is none."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not records:
        raise ConfigError("folder", str(folder), "a folder with the files of at least one shard")
    shards = {name: record["measured"] for name, record in records.items()}
    on_gpu = next((record for record in records.values() if record["gpu"]), records[next(iter(records))])
    commands = [record["command"] for record in records.values()]
    measured = {
        **_rounds(_joined(shards.get("rounds"), shards.get("rounds_64")), shards.get("kernels")),
        **_correctness(shards, "float32" if "tiny_float32" in shards else "bfloat16"),
        "greedy_identity_share_bfloat16": _identity(shards.get("tiny_bfloat16")),
        "tokens_per_s_ratio_vs_dflash": shards.get("tiny_speed", {}).get("ratio_vs_dflash"),
    }
    record = {
        "command": "; ".join([*commands, "python -m ddbench experiment=vllm_evidence shard=merge"]),
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


def _joined(rounds: dict[str, Any] | None, large: dict[str, Any] | None) -> dict[str, Any] | None:
    """The shard of the largest batch size beside that of the others, whose memory is the one told."""
    if rounds is None or large is None:
        return rounds or large
    return {**rounds, "round_ms": rounds["round_ms"] | large["round_ms"]}


def _rounds(rounds: dict[str, Any] | None, kernels: dict[str, Any] | None) -> dict[str, Any]:
    """Round times of the engine's steps, the ratio to the chain of equal verify width, and the tree's own share."""
    if rounds is None:
        return {}
    table = {batch: {arm: step_ms(rounds, batch, arm) for arm in arms} for batch, arms in rounds["round_ms"].items()}
    ratios: dict[str, dict[str, float | None]] = {}  # None: the repeats do not agree
    for batch, arms in table.items():
        for arm, step in arms.items():
            chain = arms.get(arm.replace("ddtree", "dflash"))
            if arm.startswith("ddtree") and chain is not None:
                steady = step["steady"] and chain["steady"]
                ratio = round(step["ms"] / chain["ms"], 3) if steady else None
                ratios.setdefault(arm.removeprefix("ddtree_"), {})[batch] = ratio
    return {
        "round_ms": table,
        "round_ratio_vs_dflash": ratios,
        "tree_overhead_share": _overhead(table, kernels),
        "memory_predicted_gib": {arm: one["weights_predicted_gib"] for arm, one in rounds["memory"].items()},
        "memory_measured_gib": {arm: one["weights_measured_gib"] for arm, one in rounds["memory"].items()},
        "kv_tokens": {
            arm: {"predicted": one["kv_tokens_predicted"], "measured": one["kv_tokens_measured"]}
            for arm, one in rounds["memory"].items()
        },
    }


def step_ms(rounds: dict[str, Any], batch: str, arm: str) -> dict[str, Any]:
    """Milliseconds of an engine step, and whether its repeats agree.

    The first shard of this kind counted rounds a sequence, and says what was emitted in one. In a batch some sequence
    accepts nothing and keeps the engine going for all steps, so a step takes that part of a round; alone, a
    sequence's rounds are the steps.
    """
    spread = rounds["round_ms"][batch][arm]
    emitted = rounds.get("emitted_per_round", {}).get(batch, {}).get(arm, 1.0) if int(batch) > 1 else 1.0
    ends, most = (("q1", "q3"), LOOSE_QUARTILE) if "q1" in spread else (("low", "high"), LOOSE)
    far = max(abs(spread[end] - spread["median"]) for end in ends)
    low, high = (round(spread[side] / emitted, 3) for side in ("low", "high"))
    ms = round(spread["median"] / emitted, 3)
    return {"ms": ms, "low": low, "high": high, "n": spread["n"], "steady": far <= most * abs(spread["median"])}


def _overhead(table: dict[str, dict[str, Any]], kernels: dict[str, Any] | None) -> dict[str, Any] | None:
    """Share of a round on the device of candidates, build, positions, walk, KV moves and gather, by verify width."""
    if kernels is None:
        return None
    shares: dict[str, dict[str, float]] = {}
    for batch, arms in table.items():
        for arm in arms:
            width = int(arm.removeprefix("ddtree_")) if arm.startswith("ddtree") else 0
            spent = _kernel_ms(kernels["rows"], int(batch), width)
            if spent is not None:
                shares.setdefault(str(width), {})[batch] = round(spent / arms[arm]["ms"], 4)
    return shares


def _kernel_ms(rows: list[dict[str, Any]], batch: int, width: int) -> float | None:
    own = [row for row in rows if row["batch"] == batch and row.get("width") == width and row["kernel"] in SMALL]
    candidates = [row for row in rows if row["kernel"] == "candidates" and row["batch"] == batch]
    candidates = [row for row in candidates if row["k"] == width - 1]
    if not own or not candidates:
        return None
    return float(candidates[0]["ms"] + sum(row["ms"] for row in own))


def _identity(shard: dict[str, Any] | None) -> dict[str, dict[str, float]] | None:
    """Share of greedy outputs equal to autoregressive ones, by arm and batch size."""
    if shard is None:
        return None
    return {
        arm: {batch: one["share"] for batch, one in by_batch.items()} for arm, by_batch in shard["identity"].items()
    }


def _correctness(shards: Shards, dtype: str) -> dict[str, Any]:
    """Identity, acceptance and the law of samples, from the shard of one dtype."""
    shard, reference = shards.get(f"tiny_{dtype}"), shards.get("reference")
    if shard is None:
        return {}
    stored = shard.get("threshold_logits", FIRST_THRESHOLD)
    spine = shard["pairs"].get("ddtree_spine=dflash", {})
    lengths = {f"vllm {arm}": found for arm, found in shard["acceptance_length"].items() if arm != "autoregressive"}
    lengths |= {f"reference {arm}": one["acceptance_length"] for arm, one in (reference or {}).items()}
    ledgers = [one for by_batch in shard["identity"].values() for one in by_batch.values()]
    counts = [unexplained(one, dtype, stored) for one in ledgers]
    return {
        "greedy_identity_share": _identity(shard),
        "greedy_unexplained": None if None in counts else sum(filter(None, counts)),
        "acceptance_length": lengths,
        "k1_identical_to_dflash": same_but_for_ties(spine, dtype, stored),
        "k1_share": {batch: one["share"] for batch, one in spine.items()},
        "t1_chi_square_p": shard["chi_square"]["tree"]["p"],
        "t1_planted_rejected": shard["chi_square"]["planted_other_law"]["p"] < shard["chi_square"]["level"],
    }
