"""A point against its baselines: speed-ups paired by prompt, throughput ratios, the lossless share.

A baseline is sought inside the point's own scenario and batch size. Two arms whose fingerprints differ (engine flags,
GPU) are not compared: the speed-up is null and ``baseline_note`` says which flags differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ddbench import metrics
from reports.frames import flag
from reports.statistics import NOTHING, Estimate, bootstrap, cluster_sums, ratio_of_replicates

if TYPE_CHECKING:
    from reports.aggregate import Point

BASELINES = ("autoregressive", "dflash")


def compare(point: Point, points: list[Point]) -> dict[str, Any]:
    """The columns of ``results.parquet`` that set ``point`` against autoregressive decoding and the deepest chain."""
    row: dict[str, Any] = {}
    notes = []
    for strategy in BASELINES:
        baseline, note = find(point, points, strategy)
        notes += [note] if note else []
        if baseline is None:
            continue
        ratio, relative = speedup(point, baseline), throughput_ratio(point, baseline)
        row[f"{strategy}_point_id"] = baseline.row["point_id"]
        row |= _bounds(f"speedup_vs_{strategy}", ratio)
        row[f"speedup_vs_{strategy}_n"] = ratio.n
        row |= _bounds(f"throughput_ratio_vs_{strategy}", relative)
        if strategy == "autoregressive" and point.row["temperature"] == 0:
            row["lossless_share"] = lossless_share(point, baseline)
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
        return None, f"no {strategy} arm"
    fair = [other for other in rivals if other.row["fingerprint"] == point.row["fingerprint"]]
    if not fair:
        return None, f"not compared with {strategy}: {', '.join(differing(point, rivals[0]))} differ"
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


def differing(point: Point, other: Point) -> list[str]:
    """Names of the flags, and the GPU, in which two arms of one scenario differ."""
    flags, theirs = json.loads(point.row["flags"]), json.loads(other.row["flags"])
    names = sorted(key for key in flags.keys() | theirs.keys() if flags.get(key) != theirs.get(key))
    return names + (["gpu"] if point.row["gpu"] != other.row["gpu"] else [])


def speedup(point: Point, baseline: Point) -> Estimate:
    """Per-user decode tokens/s over the baseline's, on the (prompt, turn) pairs that both finished; n counts prompts.

    Ratio of sums: [sum tokens / sum seconds] of the point over the same of the baseline. At temperature 0, where both
    emit the same tokens, it is the ratio of total decode times. No interval where the requests share one clock.
    """
    if point is baseline:
        n = point.requests["prompt_id"].nunique()
        return Estimate(1.0, 1.0, 1.0, n) if n > 1 else Estimate(1.0, None, None, n)
    ours, theirs = _prompt_sums(point, baseline), _prompt_sums(baseline, point)
    if ours is None or theirs is None:
        return NOTHING
    ratio = bootstrap(np.hstack([ours, theirs]), (1, -1, -1, 1))
    return ratio.without_bar() if point.shares_one_clock or baseline.shares_one_clock else ratio


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


def lossless_share(point: Point, baseline: Point) -> float | None:
    """Share of requests whose token ids equal those of the baseline's first answer to the same prompt and turn.

    For the autoregressive arm itself, its repeats and blocks are held against its first: the control.
    """
    first = baseline.requests.sort_values(["block", "repeat"], kind="stable").drop_duplicates(["prompt_id", "turn"])
    reference = dict(_ids(first, ["prompt_id", "turn"]))
    ours = dict(_ids(point.requests, ["prompt_id", "turn", "block", "repeat"]))
    return metrics.lossless_share(ours, {key: reference[key[:2]] for key in ours if key[:2] in reference})


def _ids(requests: pd.DataFrame, keys: list[str]) -> Iterator[tuple[tuple[Any, ...], list[int]]]:
    rows = requests[keys].itertuples(index=False, name=None)
    for key, ids in zip(rows, requests["output_token_ids"], strict=True):
        if ids is not None:
            yield key, list(ids)


def _bounds(name: str, value: Estimate) -> dict[str, float | None]:
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def _prompt_sums(point: Point, other: Point) -> metrics.Floats | None:
    """[prompts, (tokens, seconds)] of the point's requests whose (prompt, turn) the other finished too."""
    theirs = set(other.asked)
    shared = np.asarray([asked in theirs for asked in point.asked], dtype=bool)
    shared &= point.requests["block"].isin(_common_blocks(point, other)).to_numpy(dtype=bool)
    if not shared.any():
        return None
    terms = np.column_stack(metrics.tokens_per_s_per_user.terms(point.counts))
    names = [asked[0] for asked, kept in zip(point.asked, shared, strict=True) if kept]
    return cluster_sums(names, terms[shared])[1]
