"""Frames to results: one row a point, every rate with its interval and n."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd
import pyarrow as pa

from reports import baselines, categories, selection
from reports.acceptance import acceptance_by_depth, variants
from reports.choose import RANK
from reports.columns import DRIFT, LEDGER, RESULTS, STAGES, empty
from reports.drift import drift
from reports.frames import Stored, to_frame
from reports.guards.degeneracy import judged
from reports.guards.ledger import ledger, summaries
from reports.measures import measures, stage_means
from reports.names import given_names
from reports.points import Point, points_of
from reports.ranking import rank_rates

__all__ = ["STAGES", "Analysis", "Point", "acceptance_by_depth", "analyse", "csv_table", "points_of"]


@dataclass(frozen=True)
class Analysis:
    """All points of a run, the table that ``results.parquet`` holds, in the same order, and the frames beside it.

    The frames are those of :mod:`reports.columns`; one is empty where nothing is to be said.
    """

    points: list[Point]
    table: pa.Table
    drift: pd.DataFrame = field(default_factory=lambda: empty(DRIFT))
    ledger: pd.DataFrame = field(default_factory=lambda: empty(LEDGER))
    drafters: dict[str, str] = field(default_factory=dict)  # names that the run gave to drafters, by source

    @property
    def frame(self) -> pd.DataFrame:
        """The table as pandas has it; the names of drafters, which labels are made with, are in its ``attrs``."""
        frame = to_frame(self.table)
        frame.attrs["drafters"] = dict(self.drafters)
        return frame

    @property
    def suspect_cells(self) -> frozenset[str]:
        """Ids of the cells of points that are suspect."""
        return frozenset(
            str(cell_id)
            for point in self.points
            if point.row["status"] == "suspect"
            for cell_id in point.row["cell_ids"]
        )

    @cached_property
    def categories(self) -> pd.DataFrame:
        """One row a point and category of prompts."""
        return categories.frame(self.points)

    @cached_property
    def acceptance_variants(self) -> pd.DataFrame:
        """One row a point: its acceptance length as each tool defines it."""
        return variants(self.points)

    @cached_property
    def selection(self) -> pd.DataFrame:
        """One row a scenario, batch size and strategy: the shape chosen on half of the prompts; the hindsight-best."""
        return selection.frame(self.points, self.frame)


def analyse(stored: Stored) -> Analysis:
    """Pool cells to points, judge them, and derive every column of :data:`reports.columns.RESULTS`."""
    points = judged(points_of(stored))
    book = ledger(stored, points)
    lossless, stage_ms = summaries(book, points), stage_means(stored)
    rows = []
    for point in points:
        row = dict(point.row)
        if point.measured:
            row |= measures(point)
            row |= baselines.compare(point, points)
            row |= stage_ms.get(row["point_id"], {})
            if not row["replayed"]:  # whose tokens are the baseline's by construction
                row |= lossless.get(row["point_id"], {})
        rows.append({name: row.get(name) for name in RESULTS.names})
    ranks = rank_rates(points, to_frame(pa.Table.from_pylist(rows, schema=RESULTS)))
    table = pa.Table.from_pylist([{**row, RANK: ranks.get(str(row["point_id"]))} for row in rows], schema=RESULTS)
    return Analysis(points, table, drift(points, stored), book, given_names(stored.config))


def csv_table(table: pa.Table) -> pa.Table:
    """The results as CSV can hold them: ``cell_ids`` joined by semicolons, a null an empty field."""
    ids = pa.array([";".join(row) for row in table["cell_ids"].to_pylist()], pa.string())
    return table.set_column(table.schema.get_field_index("cell_ids"), "cell_ids", ids)
