"""Comparisons that were refused because the fingerprints differ: struck out, with the differing keys."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from reports import baselines
from reports.aggregate import Analysis
from reports.columns import BASELINES
from reports.frames import records
from reports.guards.fingerprint import differing
from reports.points import Point
from reports.sections.text import bounds, table, whole

NEAR = ("engine", "model", "dataset", "temperature", "batch_size")  # as of baselines.find


def section(frame: pd.DataFrame, analysis: Analysis) -> list[str]:
    rows = list(_rows(frame, analysis.points))
    if not rows:
        return []
    return [
        "## Refused comparisons",
        "",
        "Ratios between arms whose settings differ beyond strategy and shape. They are no speed-ups of a strategy, "
        "are in no other table, and are struck out here.",
        "",
        *table(rows),
        "",
    ]


def _rows(frame: pd.DataFrame, points: list[Point]) -> Iterator[dict[str, str]]:
    labels = dict(zip(frame["point_id"], frame["label"], strict=True))
    by_id = {point.row["point_id"]: point for point in points}
    for row in records(frame):
        for strategy in BASELINES:
            if f"not compared with {strategy}" not in str(row["baseline_note"]):
                continue
            point = by_id[row["point_id"]]
            rival = _nearest(point, points, strategy)
            if rival is not None:
                yield {
                    "Arm": row["label"],
                    "Batch size": whole(row["batch_size"]),
                    "Against": labels[rival.row["point_id"]],
                    "Refused speed-up": f"~~{bounds(baselines.speedup(point, rival))}~~",
                    "Differing keys": ", ".join(differing(point, rival)),
                }


def _nearest(point: Point, points: list[Point], strategy: str) -> Point | None:
    """The measured arm of a strategy whose fingerprint differs in the fewest keys, of the same model and workload."""
    others = [
        other
        for other in points
        if other.measured
        and other.row["strategy"] == strategy
        and other.row["fingerprint"] != point.row["fingerprint"]
        and all(other.row[name] == point.row[name] for name in NEAR)
    ]
    return min(others, key=lambda other: (len(differing(point, other)), other.row["point_id"]), default=None)
