"""Acceptance in depth, and as other tools would have printed it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ddbench import metrics
from ddbench.acceptance import VARIANTS
from reports.columns import ACCEPTANCE_VARIANTS, framed
from reports.points import Point
from reports.quantities import Product


def acceptance_by_depth(point: Point) -> list[dict[str, Any]]:
    """Rows (depth, unconditional and conditional rate with _low and _high, rounds at risk) of one point.

    Rates as :func:`ddbench.metrics.acceptance_by_depth`, down to the arm's depth; intervals over prompts and blocks.
    """
    histogram = point.counts.histogram
    unseen = max((point.row["depth"] or 0) + 1 - histogram.shape[1], 0)  # depths that no round reached: 0, not absent
    reached = metrics.rounds_reaching(np.pad(histogram, ((0, 0), (0, unseen))))
    sums = point.summed(reached, np.ones(len(reached), dtype=bool))
    deepest = reached.shape[1] - 1
    rates = sums.counted(*(_rate(depth, base, deepest) for depth in range(1, deepest + 1) for base in (0, depth - 1)))
    rows = []
    for depth, unconditional, conditional in zip(range(1, deepest + 1), rates[::2], rates[1::2], strict=True):
        row: dict[str, Any] = {"depth": depth, "rounds": int(reached[:, depth - 1].sum())}
        rows.append(row | unconditional.columns("unconditional") | conditional.columns("conditional"))
    return rows


def variants(points: list[Point]) -> pd.DataFrame:
    """One row a point: point_id and a column for each of :data:`ddbench.acceptance.VARIANTS`."""
    rows: list[dict[str, object]] = []
    for point in points:
        values = {each.name: each.value(point.counts) for each in VARIANTS} if point.measured else {}
        rows.append({"point_id": point.row["point_id"], **values})
    return framed(rows, ACCEPTANCE_VARIANTS)


def _rate(depth: int, base: int, deepest: int) -> Product:
    """Rounds that reached ``depth`` over those that reached ``base``."""
    powers = [0] * (deepest + 1)
    powers[depth], powers[base] = 1, -1
    return Product(tuple(powers))
