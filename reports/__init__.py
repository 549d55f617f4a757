"""Reports: stored files to tables, figures and a page that people read. Pure functions of a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import pyarrow.csv as pa_csv

from ddbench.storage import write_parquet, write_whole
from reports.aggregate import Analysis, analyse, csv_table
from reports.choose import scenarios
from reports.figures import SavedFigure, draw_run, draw_scenario
from reports.frames import Stored, read_run
from reports.load import RunFrames, load_run
from reports.markdown import render
from reports.tracking import WandbSettings, log_report
from reports.write import write_page

__all__ = ["ReportPaths", "RunFrames", "WandbSettings", "build_report", "load_run"]


@dataclass(frozen=True)
class ReportPaths:
    """What a report wrote: the page (HTML beside it), the results table (Parquet; CSV beside it) and the figures.

    ``suspect_cells``: ids of the cells whose points it found suspect.
    """

    report: Path
    results: Path
    figures: tuple[Path, ...]
    suspect_cells: frozenset[str]


def build_report(run: Path, *, wandb: WandbSettings | None = None, figures: bool = True) -> ReportPaths:
    """Rebuild ``results.parquet``, ``results.csv``, ``report.md``, ``report.html`` and ``figures/*.png`` of a run.

    From its stored files alone. The same files give the same bytes, but for the line that states when it was built.
    ``wandb`` logs a copy to Weights & Biases; it never makes this fail. Raises FileNotFoundError where there is no such
    folder.
    """
    stored = read_run(run)
    analysis = analyse(stored)
    results = run / "results.parquet"
    write_parquet(results, analysis.table)
    text = BytesIO()
    pa_csv.write_csv(csv_table(analysis.table), text)
    write_whole(run / "results.csv", text.getvalue())
    drawn = _draw(stored, analysis, run / "figures") if figures else []
    report = run / "report.md"
    built = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    write_page(report, render(stored, analysis, drawn, built))
    paths = ReportPaths(report, results, tuple(figure.path for figure in drawn), analysis.suspect_cells)
    if wandb is not None:
        log_report(wandb, run)
    return paths


def _draw(stored: Stored, analysis: Analysis, folder: Path) -> list[SavedFigure]:
    """All figures, in a folder that then holds no older ones."""
    folder.mkdir(exist_ok=True)
    drawn = [
        figure
        for scenario in scenarios(analysis.frame)
        for figure in draw_scenario(scenario, analysis, stored.dropped, folder)
    ] + draw_run(stored, analysis, folder)
    for old in set(folder.glob("*.png")) - {figure.path for figure in drawn}:
        old.unlink()
    return drawn
