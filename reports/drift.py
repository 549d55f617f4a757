"""Drift: whether the machine grew slower or faster from one block of repetition to the next.

Blocks run their arms in alternating order (ABBA), so that a steady drift falls on all arms alike and speed-ups stay
fair; what it does to absolute numbers is shown here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from ddbench import metrics
from reports.columns import DRIFT, framed
from reports.frames import Stored
from reports.points import Point, plain


def drift(points: list[Point], stored: Stored) -> pd.DataFrame:
    """One row a scenario, batch size and block, where there are two blocks or more.

    ``relative_rate`` is the geometric mean, over the arms that have the first block and this one, of the decode rate
    per user in this block over that in the first; ``n`` counts those arms. ``first_started`` is when the first cell of
    the block began.
    """
    rows: list[dict[str, object]] = []
    for (scenario, size), group in groupby(points, key=lambda point: (point.row["scenario"], point.row["batch_size"])):
        rows += [{"scenario": scenario, "batch_size": size, **row} for row in _blocks(list(group), stored)]
    return framed(rows, DRIFT)


def _blocks(points: list[Point], stored: Stored) -> Iterator[dict[str, Any]]:
    arms = [_rates(point) for point in points]
    blocks = sorted(set().union(*arms))
    if len(blocks) < 2:
        return
    cells = stored.cells[
        stored.cells["cell_id"].isin([cell_id for point in points for cell_id in point.row["cell_ids"]])
    ]
    began = cells.groupby("block")["started"].min()
    for block in blocks:
        logs = [np.log(arm[block] / arm[blocks[0]]) for arm in arms if block in arm and blocks[0] in arm]
        yield {
            "block": block,
            "first_started": plain(began[block]),
            "relative_rate": float(np.exp(np.mean(logs))) if logs else None,
            "n": len(logs),
        }


def _rates(point: Point) -> dict[int, float]:
    """Decode tokens/s per user of each block that has it."""
    rates = {
        block: metrics.tokens_per_s_per_user(counts)
        for block, counts in zip(point.block_ids, point.blocks, strict=True)
    }
    return {block: rate for block, rate in rates.items() if rate}
