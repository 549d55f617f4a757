"""The ratios of a pair of points, each with its interval, how that was made, and what it allows one to say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ddbench import metrics
from reports.baselines import ACCEPTANCE_RATIO, SPEEDUP, STEP_RATIO, paired
from reports.compare.match import ASKED, Pair
from reports.points import Point
from reports.statistics import NOTHING, Estimate

# Each ratio is the first run's value over the second's; larger is better but for the round's time.
MEASURES = {
    "decode_speed": metrics.tokens_per_s_per_user,
    "acceptance": metrics.acceptance_length,
    "round_time": metrics.step_ms,
}
_QUANTITIES = {"decode_speed": SPEEDUP, "acceptance": ACCEPTANCE_RATIO, "round_time": STEP_RATIO}
Row = dict[str, Any]
UNPAIRED = "unpaired, other prompts"

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("strategy", "policy", "model", "dataset")),
        *((name, pa.int32()) for name in ("width", "depth", "nodes", "batch_size", "max_new_tokens", "top_k")),
        *((name, pa.float64()) for name in ("min_log_prob", "temperature", "top_p")),
        ("force_spine", pa.bool_()),
        *((name, pa.string()) for name in ("point_id", "point_id_against", "status", "status_against")),
        *((f"{ratio.name}{end}", pa.float64()) for ratio in MEASURES.values() for end in ("", "_against")),
        *((f"{name}_ratio{end}", pa.float64()) for name in MEASURES for end in ("", "_low", "_high")),
        ("prompts", pa.int32()),
        ("method", pa.string()),
        ("verdict", pa.string()),
        ("same_output_share", pa.float64()),
        ("differs", pa.list_(pa.string())),
    ]
)


def measure(pair: Pair, mine: Row, its: Row) -> Row:
    """One row of :data:`SCHEMA` from a pair and its rows of the two ``results.parquet``.

    Ratios are paired by prompt where both runs had the same prompts. Blocks of two runs are no pairs: all blocks of
    both are pooled, so that what differs between starts of an arm is in no interval; ``method`` says how many each had.

    With other prompts, their logarithms are independent and the interval's ends come from the two arms' own intervals
    (square-and-add; Zou and Donner, "Construction of confidence limits about effect measures", 2008). ``verdict`` is
    of the decode speed; null where there is no interval or a point is not ``ok``.
    """
    ours, theirs = pair.ours, pair.theirs
    same = ours.row["prompts_hash"] == theirs.row["prompts_hash"]
    found = _paired(pair) if same else _unpaired(mine, its)
    speed = found["decode_speed"]
    row: Row = {name: ours.row[name] for name in ASKED}
    row |= {"point_id": ours.row["point_id"], "point_id_against": theirs.row["point_id"]}
    row |= {"status": ours.row["status"], "status_against": theirs.row["status"]}
    for ratio in MEASURES.values():
        row |= {ratio.name: mine[ratio.name], f"{ratio.name}_against": its[ratio.name]}
    for name, value in found.items():
        row |= {f"{name}_ratio": value.value, f"{name}_ratio_low": value.low, f"{name}_ratio_high": value.high}
    trusted = ours.row["status"] == theirs.row["status"] == "ok"
    return row | {
        "prompts": speed.n if speed.value is not None else None,
        "method": speed.method,
        "verdict": speed.verdict if trusted else None,
        "same_output_share": _same_outputs(ours, theirs) if same and ours.row["temperature"] == 0 else None,
        "differs": list(pair.differs),
    }


def table_of(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _paired(pair: Pair) -> dict[str, Estimate]:
    both = paired(pair.ours, pair.theirs, by_block=False) if pair.ours.measured and pair.theirs.measured else None
    if both is None:
        return dict.fromkeys(MEASURES, NOTHING)
    speed, step = both.timed(_QUANTITIES["decode_speed"], _QUANTITIES["round_time"])
    (acceptance,) = both.counted(_QUANTITIES["acceptance"])
    estimates = {"decode_speed": speed, "acceptance": acceptance, "round_time": step}
    blocks = len(pair.ours.blocks), len(pair.theirs.blocks)
    told = "" if blocks == (1, 1) else f" each: all blocks of both runs pooled, {blocks[0]} and {blocks[1]}"
    return {
        name: replace(each, method=each.method and f"paired {each.method}{told}") for name, each in estimates.items()
    }


def _unpaired(mine: Row, its: Row) -> dict[str, Estimate]:
    return {name: _quotient(_of(mine, ratio.name), _of(its, ratio.name)) for name, ratio in MEASURES.items()}


def _of(row: Row, name: str) -> Estimate:
    """A metric of one arm with its interval over its own prompts."""
    return Estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], row["prompts"] or 0)


def _quotient(first: Estimate, second: Estimate) -> Estimate:
    if first.value is None or second.value is None or second.value == 0:
        return NOTHING
    value, n = first.value / second.value, min(first.n, second.n)
    if None in (first.low, first.high, second.low, second.high):
        return Estimate(value, None, None, n)
    down = math.hypot(_log(first.value, first.low), _log(second.high, second.value))
    up = math.hypot(_log(first.high, first.value), _log(second.value, second.low))
    return Estimate(value, value * math.exp(-down), value * math.exp(up), n, UNPAIRED)


def _log(larger: float | None, smaller: float | None) -> float:
    return math.log(larger / smaller) if larger and smaller else math.inf


def _same_outputs(ours: Point, theirs: Point) -> float | None:
    """Share of (prompt, turn) pairs, of those that both runs answered, whose first answers have the same tokens."""
    return metrics.lossless_share(_first_answers(ours), _first_answers(theirs))


def _first_answers(point: Point) -> dict[tuple[Any, ...], list[int]]:
    rows = point.requests.sort_values(["block", "repeat"], kind="stable").drop_duplicates(["prompt_id", "turn"])
    keys = rows[["prompt_id", "turn"]].itertuples(index=False, name=None)
    return {key: list(ids) for key, ids in zip(keys, rows["output_token_ids"], strict=True) if ids is not None}
