"""Who leads: the order by rate, held against the paired ratios of the arms themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.baselines import speedup
from reports.points import Point

Row = dict[str, Any]


def ordered(rows: list[Row], points: Mapping[str, Point]) -> list[Row]:
    """Rows, fastest first by rate, so that none stands before one that paired with it is distinguishably faster.

    Where the pairs go round in a circle the order by rate stays.
    """
    arms = [points[row["point_id"]] for row in rows]
    if all(set(arm.asked) == set(arms[0].asked) for arm in arms):
        return rows  # on the same requests rate and pair are one
    slower = {
        (one, other)
        for one in range(len(rows))
        for other in range(len(rows))
        if one != other and speedup(arms[one], arms[other]).verdict == "slower"
    }
    left, order = list(range(len(rows))), []
    while left:
        first = next((one for one in left if not any((one, other) in slower for other in left)), left[0])
        order.append(first)
        left.remove(first)
    return [rows[index] for index in order]


def behind(rows: list[Row], points: Mapping[str, Point]) -> list[Row]:
    """The rows that the first one, paired with them, does not lead: its ratio is below 1, surely or not."""
    first = points[rows[0]["point_id"]]
    pairs = [(row, speedup(first, points[row["point_id"]]).value) for row in rows[1:]]
    return [row for row, value in pairs if value is not None and value < 1]
