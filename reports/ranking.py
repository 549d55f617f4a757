"""The rate that arms are ranked by: on what all contenders measured, so that nobody wins by easier or faster blocks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pandas as pd

from ddbench import metrics
from reports.choose import usable
from reports.frames import counts_of
from reports.points import Point


def rank_rates(points: list[Point], results: pd.DataFrame) -> dict[str, float | None]:
    """By point: decode tokens/s per user on the requests that all usable arms at its batch size share.

    A request is known by prompt, turn, repeat and block. Where the usable arms have none in common, each has its own
    rate over all of its requests. Points that cannot win have no entry.
    """
    by_id = {str(point.row["point_id"]): point for point in points}
    found: dict[str, float | None] = {}
    for _, group in usable(results).groupby(["scenario", "batch_size"], sort=False):
        arms = [by_id[str(point_id)] for point_id in group["point_id"]]
        shared = common(arms)
        found |= {str(arm.row["point_id"]): rate(arm, shared) for arm in arms}
    return found


def common(arms: Collection[Point]) -> set[tuple[Any, ...]]:
    """Requests, as (prompt, turn, repeat, block), that all arms finished."""
    return set.intersection(*(set(arm.asked) for arm in arms)) if arms else set()


def rate(arm: Point, shared: set[tuple[Any, ...]]) -> float | None:
    """Decode tokens/s per user over some requests; over all of the arm's where there is none of them, or no rate."""
    kept = [asked in shared for asked in arm.asked]
    some = metrics.tokens_per_s_per_user(counts_of(arm.requests[kept])) if any(kept) else None
    return metrics.tokens_per_s_per_user(arm.counts) if some is None else some
