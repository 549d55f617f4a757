"""Two runs beside each other: the same points on two machines, versions or commits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddbench.storage import write_parquet
from reports.aggregate import analyse
from reports.compare.match import match
from reports.compare.measures import measure, table_of
from reports.compare.page import render
from reports.frames import read_run
from reports.write import slug, write_page

__all__ = ["ComparisonPaths", "build_comparison"]


@dataclass(frozen=True)
class ComparisonPaths:
    """What a comparison wrote, into the first run's folder: the page (HTML beside it) and its rows as Parquet.

    ``suspect_cells``: of the first run and of the second, ids of the cells whose points are suspect.
    """

    report: Path
    results: Path
    suspect_cells: tuple[frozenset[str], frozenset[str]]


def build_comparison(run: Path, against: Path) -> ComparisonPaths:
    """Write ``compare-<id of against>.md``, ``.html`` and ``.parquet`` into ``run``, from stored files alone.

    The same files give the same bytes, but for the line of the time of building. Raises FileNotFoundError where there
    is no such folder.
    """
    ours, theirs = read_run(run), read_run(against)
    first, second = analyse(ours), analyse(theirs)
    found = match(first.points, second.points)
    mine, its = ({row["point_id"]: row for row in each.table.to_pylist()} for each in (first, second))
    rows = [measure(pair, mine[pair.ours.row["point_id"]], its[pair.theirs.row["point_id"]]) for pair in found.pairs]
    stem = slug(f"compare-{against.resolve().name}")
    results = run / f"{stem}.parquet"
    write_parquet(results, table_of(rows))
    built = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    page = run / f"{stem}.md"
    write_page(page, render(ours, theirs, found, rows, built))
    return ComparisonPaths(page, results, (first.suspect_cells, second.suspect_cells))
