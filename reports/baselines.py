"""A point against its baselines: speed-ups paired by prompt, throughput ratios.

A baseline is sought inside the point's own scenario and batch size. Two arms whose fingerprints differ (engine flags,
GPU) are not compared: the speed-up is null and ``baseline_note`` says which flags differ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddbench import metrics
from reports.columns import BASELINES
from reports.frames import flag
from reports.guards.fingerprint import differing
from reports.quantities import Difference, Product
from reports.statistics import NOTHING, Estimate, ratio_of_replicates, sign_test
from reports.sums import Sums, beside

if TYPE_CHECKING:
    from reports.points import Point

# Ratios whose terms a comparison lays side by side, those of the baseline after those of the point.
COMPARED = (metrics.tokens_per_s_per_user, metrics.acceptance_length, metrics.step_ms)


def _powers(which: int, ours: int, theirs: int) -> tuple[int, ...]:
    """Exponents of the ratio number ``which`` of :data:`COMPARED`, of the point and of the baseline."""
    powers = [0] * (4 * len(COMPARED))
    for start, power in ((2 * which, ours), (2 * len(COMPARED) + 2 * which, theirs)):
        powers[start : start + 2] = [power, -power]
    return tuple(powers)


SPEEDUP, ACCEPTANCE_RATIO, STEP_RATIO = (Product(_powers(which, 1, -1)) for which in range(len(COMPARED)))
ACCEPTANCE_DIFFERENCE = Difference(Product(_powers(1, 1, 0)), Product(_powers(1, 0, 1)))


def compare(point: Point, points: list[Point]) -> dict[str, Any]:
    """The columns of ``results.parquet`` that set ``point`` against autoregressive decoding and the deepest chain."""
    row: dict[str, Any] = {}
    notes = []
    for strategy in BASELINES:
        baseline, note = find(point, points, strategy)
        notes += [note] if note else []
        if baseline is None:
            continue
        row[f"{strategy}_point_id"] = baseline.row["point_id"]
        pair = None if point is baseline else paired(point, baseline)
        ratio = _same(point) if point is baseline else NOTHING
        factors: dict[str, float | None] = {}
        if pair is not None:
            ratio, factors = _measured(pair)
        relative = throughput_ratio(point, baseline)
        row |= ratio.columns(f"speedup_vs_{strategy}") | relative.columns(f"throughput_ratio_vs_{strategy}")
        row[f"speedup_vs_{strategy}_n"] = ratio.n
        row[f"throughput_ratio_vs_{strategy}_n"] = relative.n
        row[f"speedup_vs_{strategy}_method"] = ratio.method
        if pair is not None:
            row[f"speedup_vs_{strategy}_verdict"] = ratio.verdict
            row[f"speedup_vs_{strategy}_sign_p"] = sign_p(pair)
        row |= factors if strategy == "dflash" else {}
    return row | {"baseline_note": "; ".join(notes) or None}


def find(point: Point, points: list[Point], strategy: str) -> tuple[Point | None, str | None]:
    """(baseline, note): the autoregressive arm, or the deepest measured chain, of the same drafter if there is one."""
    rivals = [
        other
        for other in points
        if other.measured
        and other.row["strategy"] == strategy
        and all(other.row[name] == point.row[name] for name in ("scenario", "batch_size"))
    ]
    if not rivals:
        return None, _stranger(point, points, strategy) or f"no {strategy} arm"
    fair = [other for other in rivals if other.row["fingerprint"] == point.row["fingerprint"]]
    if not fair:
        apart = min((differing(point, other) for other in rivals), key=len)
        return None, f"not compared with {strategy}: {', '.join(apart)} differ"
    same_drafter = [other for other in fair if other.row["drafter"] == point.row["drafter"]]
    chosen = max(same_drafter or fair, key=lambda other: (_depth(other), other.row["point_id"]))
    if chosen is point:
        return chosen, None
    if chosen.row["status"] != "ok":
        return chosen, f"the {strategy} arm is {chosen.row['status']}"
    unknown = flag(point.row["flags"], "attached")
    return chosen, f"attached servers: that the {strategy} arm has the same flags is not known" if unknown else None


def _depth(point: Point) -> float:
    """A chain of no stated depth drafts the whole block: the deepest there is."""
    depth = point.row["depth"]
    return float("inf") if depth is None else float(depth)


def _stranger(point: Point, points: list[Point], strategy: str) -> str | None:
    """Why the nearest arm of another scenario is not compared with: the same engine, model, workload and load."""
    asked = ("engine", "model", "dataset", "temperature", "batch_size")
    others = [
        other
        for other in points
        if other.measured
        and other.row["strategy"] == strategy
        and all(other.row[name] == point.row[name] for name in asked)
    ]
    apart = min((differing(point, other) for other in others), key=len, default=None)
    return f"not compared with {strategy}: {', '.join(apart)} differ" if apart else None


def speedup(point: Point, baseline: Point) -> Estimate:
    """Per-user decode tokens/s over the baseline's, on the requests that both finished; n counts prompts.

    Ratio of sums: [sum tokens / sum seconds] of the point over the same of the baseline. At temperature 0, where both
    emit the same tokens, it is the ratio of total decode times. Where the requests of a block share one clock, blocks
    alone are replicates.
    """
    if point is baseline:
        return _same(point)
    pair = paired(point, baseline)
    return NOTHING if pair is None else _paired(pair.timed(SPEEDUP)[0])


def paired(point: Point, baseline: Point, by_block: bool = True) -> Sums | None:
    """The terms of :data:`COMPARED` of both arms on the requests that both finished; None where there is none.

    A request's partner has the same prompt, turn, repeat and block. Where the two arms have no block in common they are
    one block each, and the partner has the same prompt and turn; likewise where ``by_block`` is False: arms of two
    runs, whose numbers of blocks say nothing of when they were measured.
    """
    common = set(point.block_ids) & set(baseline.block_ids) if by_block else set()
    if common:
        ours, theirs = _kept(point, baseline, 4), _kept(baseline, point, 4)
    else:
        ours, theirs = _kept(point, baseline, 2), _kept(baseline, point, 2)
    if not ours.any():
        return None
    first, second = (
        arm.summed(np.column_stack([term for ratio in COMPARED for term in ratio.terms(arm.counts)]), kept)
        for arm, kept in ((point, ours), (baseline, theirs))
    )
    return beside(first, second) if common else beside(first.pooled(), second.pooled())


def sign_p(pair: Sums) -> float | None:
    """p of the sign test of the speed-up over prompts; None where they share a clock, or none can be told apart."""
    if pair.one_clock:
        return None
    of_prompts = pair.values.sum(axis=0)
    return sign_test(np.array([SPEEDUP.at(totals) for totals in of_prompts if SPEEDUP.has_bar(totals)]))


def _kept(point: Point, other: Point, parts: int) -> NDArray[np.bool_]:
    """Which requests the other arm finished too, known by the first ``parts`` of prompt, turn, repeat and block."""
    theirs = {asked[:parts] for asked in other.asked}
    return np.asarray([asked[:parts] in theirs for asked in point.asked], dtype=bool)


def _measured(pair: Sums) -> tuple[Estimate, dict[str, float | None]]:
    """The speed-up; and, against a chain, the columns of both its factors and of the difference in acceptance."""
    (speed, step), (acceptance, difference) = pair.mixed(
        [SPEEDUP, STEP_RATIO], [ACCEPTANCE_RATIO, ACCEPTANCE_DIFFERENCE]
    )
    columns = acceptance.columns("acceptance_ratio_vs_dflash") | difference.columns("acceptance_difference_vs_dflash")
    return _paired(speed), columns | step.columns("step_ratio_vs_dflash")


def _same(point: Point) -> Estimate:
    if metrics.tokens_per_s_per_user(point.counts) is None:
        return NOTHING  # every answer ended with the prefill's token: there is no speed to be 1 x of
    n = len(point.sums.prompts)
    return Estimate(1.0, 1.0, 1.0, n) if n > 1 else Estimate(1.0, None, None, n)


def _paired(ratio: Estimate) -> Estimate:
    """A ratio of two arms whose interval says so."""
    return replace(ratio, method=f"paired {ratio.method}") if ratio.low is not None else ratio


def throughput_ratio(point: Point, baseline: Point) -> Estimate:
    """Aggregate tokens/s over the baseline's; its interval comes from paired blocks of repetition, two or more."""
    common = _common_blocks(point, baseline)
    paired = common <= set(point.block_ids) & set(baseline.block_ids)  # else no two blocks are a pair
    mine, other = (
        [block for index, block in zip(each.block_ids, each.blocks, strict=True) if index in common]
        for each in (point, baseline)
    )
    ours, theirs = metrics.tokens_per_s(mine), metrics.tokens_per_s(other)
    if ours is None or theirs is None:
        return NOTHING
    pairs = [
        (a, b)
        for one, another in zip(mine, other, strict=False)
        if (a := metrics.tokens_per_s([one])) is not None and (b := metrics.tokens_per_s([another])) is not None
    ]
    return ratio_of_replicates(ours / theirs, pairs if paired else [])


def _common_blocks(point: Point, baseline: Point) -> set[int]:
    """Blocks of repetition that both measured: near in time, hence a pair. Where there is none, all blocks of both."""
    common = set(point.block_ids) & set(baseline.block_ids)
    return common or set(point.block_ids) | set(baseline.block_ids)
