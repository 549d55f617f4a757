"""Acceptance and speed by category of prompts: what a mean over a workload hides."""

from __future__ import annotations

import pandas as pd

from reports.baselines import SPEEDUP, find, paired
from reports.columns import BASELINES, CATEGORIES, framed
from reports.measures import ratios
from reports.points import Point

UNCATEGORISED = "uncategorised"  # stands for a null category
RATES = ("acceptance_length", "tokens_per_s_per_user")


def frame(points: list[Point]) -> pd.DataFrame:
    """One row a point, dataset and category: rates and speed-ups over its prompts, intervals as for all prompts."""
    rows: list[dict[str, object]] = []
    for point in points:
        if not point.measured:
            continue
        pairs = {}
        for strategy in BASELINES:
            baseline, _ = find(point, points, strategy)
            pairs[strategy] = None if baseline is None or baseline is point else paired(point, baseline)
        named = point.requests.assign(
            dataset=point.requests["dataset"].fillna(str(point.row["dataset"])),
            category=point.requests["category"].fillna(UNCATEGORISED),
        )
        for (dataset, category), requests in named.groupby(["dataset", "category"], sort=True):
            prompts = set(requests["prompt_id"])
            row: dict[str, object] = {"point_id": point.row["point_id"], "dataset": dataset, "category": category}
            row |= {"requests": len(requests), "prompts": len(prompts)}
            row |= ratios(point.sums.among(prompts), *RATES)
            for strategy, pair in pairs.items():
                if pair is not None and prompts & set(pair.prompts):
                    row |= pair.among(prompts).timed(SPEEDUP)[0].columns(f"speedup_vs_{strategy}")
            rows.append(row)
    return framed(rows, CATEGORIES)
