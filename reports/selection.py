"""The best shape, chosen on one half of the prompts and reported on the other.

The fastest of many shapes on the prompts that chose it is partly the luckiest: its own numbers flatter it. So the
prompts are split in two halves that depend on their ids alone; the shape is the fastest on one, and what is said of it
comes from the other. The hindsight-best, fastest on all prompts, stands beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ddbench import metrics
from reports.baselines import SPEEDUP, find, paired
from reports.choose import RATE, labelled, ranks, usable
from reports.columns import SELECTION, framed
from reports.frames import records
from reports.measures import ratios
from reports.points import Point
from reports.ranking import common, rate
from reports.statistics import NOTHING, Estimate

LEAST_PROMPTS = 8  # of which four choose and four report; with fewer, nothing is said


def frame(points: list[Point], results: pd.DataFrame) -> pd.DataFrame:
    """One row a scenario, batch size and strategy with a point of status ok."""
    by_id = {str(point.row["point_id"]): point for point in points}
    candidates = usable(labelled(results))
    rows = [
        {"scenario": scenario, "batch_size": size, "strategy": strategy, **_chosen(group, by_id, points)}
        for (scenario, size, strategy), group in candidates.groupby(["scenario", "batch_size", "strategy"], sort=False)
    ]
    return framed(rows, SELECTION)


def halves(categories: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Splits prompts, given with their categories, into those that choose and those that report.

    Prompts of a category in the order of the SHA-256 of their ids fall to the halves by turns; the turn goes on from
    one category to the next, so that the halves are as equal as can be, within categories and over all.
    """
    order = sorted(categories, key=lambda prompt: (categories[prompt], hashlib.sha256(prompt.encode()).hexdigest()))
    return set(order[::2]), set(order[1::2])


def _chosen(group: pd.DataFrame, by_id: Mapping[str, Point], points: list[Point]) -> dict[str, object]:
    """The columns of one strategy; candidates are compared on the prompts, in the blocks, that all of them finished."""
    rows = {row["point_id"]: row for row in records(group)}
    rank = dict(zip(group["point_id"], ranks(group), strict=True))
    labels = {point_id: row["label"] for point_id, row in rows.items()}
    hindsight = max(rows, key=lambda point_id: (rank[point_id], point_id))
    found: dict[str, object] = {
        "hindsight_point_id": hindsight,
        "hindsight_label": labels[hindsight],
        "hindsight_value": rows[hindsight][RATE],
        "hindsight_speedup": rows[hindsight]["speedup_vs_autoregressive"],
    }
    categories = _shared([by_id[point_id] for point_id in rows])
    if len(categories) < LEAST_PROMPTS:
        return found | {"note": f"fewer than {LEAST_PROMPTS} prompts that all shapes finished: no half to choose on"}
    choose, report = halves(categories)
    shared = {asked for asked in common([by_id[point_id] for point_id in rows]) if asked[0] in choose}
    best = max(rows, key=lambda point_id: (_rate(by_id[point_id], choose, shared), point_id))
    value = ratios(by_id[best].sums.among(report), RATE)
    return (
        found
        | {"chosen_point_id": best, "chosen_label": labels[best]}
        | {f"value{end}": value[f"{RATE}{end}"] for end in ("", "_low", "_high")}
        | _speedup(by_id[best], points, report).columns("speedup_vs_autoregressive")
        | {"prompts_choose": len(choose), "prompts_report": len(report)}
        | {"note": "one shape: there was nothing to choose" if len(rows) == 1 else None}
    )


def _shared(candidates: list[Point]) -> dict[str, str]:
    """Prompts that all candidates finished a request of, with their categories."""
    common = set.intersection(*(set(point.sums.prompts) for point in candidates))
    known = candidates[0].requests[["prompt_id", "category"]].drop_duplicates("prompt_id")
    return {
        str(prompt): str(category) for prompt, category in known.itertuples(index=False, name=None) if prompt in common
    }


def _rate(point: Point, prompts: set[str], shared: set[tuple[Any, ...]]) -> float:
    """On the requests that all candidates finished; on all of its own to the prompts where there is none."""
    value: Any = rate(point, shared) if shared else metrics.tokens_per_s_per_user(point.counts_of(prompts))
    return 0.0 if value is None else float(value)


def _speedup(point: Point, points: list[Point], prompts: set[str]) -> Estimate:
    """Against autoregressive decoding, on some prompts; 1 for that arm itself."""
    baseline, _ = find(point, points, "autoregressive")
    if baseline is None:
        return NOTHING
    if baseline is point:
        return Estimate(1.0, None, None, len(prompts))
    pair = paired(point, baseline)
    return NOTHING if pair is None else pair.among(prompts).timed(SPEEDUP)[0]
