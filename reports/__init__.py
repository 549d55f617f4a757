"""Reports: stored files to tables, figures and a page that people read. Pure functions of a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from reports.aggregate import Analysis, analyse, csv_table
from reports.choose import scenarios
from reports.figures import SavedFigure, draw_scenario
from reports.frames import RunFrames, Stored, read_run
from reports.markdown import render
from reports.wandb_sink import WandbSettings, log_report

__all__ = ["ReportPaths", "RunFrames", "WandbSettings", "build_report", "load_run"]


@dataclass(frozen=True)
class ReportPaths:
    """What a report wrote: the page, the results table (Parquet; the CSV lies beside it) and the figures."""

    report: Path
    results: Path
    figures: tuple[Path, ...]


def build_report(run: Path, *, wandb: WandbSettings | None = None, figures: bool = True) -> ReportPaths:
    """Rebuild ``results.parquet``, ``results.csv``, ``report.md`` and ``figures/*.png`` of a run from its stored files.

    The same files give the same bytes, but for the line of the report that states when it was built. ``wandb`` logs a
    copy to Weights & Biases; it never makes this fail. Raises FileNotFoundError where there is no such folder.
    """
    stored = read_run(run)
    analysis = analyse(stored)
    results = run / "results.parquet"
    pq.write_table(analysis.table, results)
    pa_csv.write_csv(csv_table(analysis.table), run / "results.csv")
    drawn = _draw(stored, analysis, run / "figures") if figures else []
    report = run / "report.md"
    built = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    _write_whole(report, render(stored, analysis, drawn, built))
    paths = ReportPaths(report, results, tuple(figure.path for figure in drawn))
    if wandb is not None:
        log_report(wandb, stored, analysis, paths.report, paths.results, paths.figures)
    return paths


def load_run(run: Path) -> RunFrames:
    """The frames of a run; see :func:`ddbench.load`.

    Raises:
        FileNotFoundError: the folder is no run.
    """
    if not (run / "cells").is_dir():
        raise FileNotFoundError(f"{run}: no such run folder; one has cells/ in it")
    stored = read_run(run)
    return RunFrames(analyse(stored).frame, stored.requests, stored.rounds, stored.cells, stored.telemetry)


def _draw(stored: Stored, analysis: Analysis, folder: Path) -> list[SavedFigure]:
    """All figures, in a folder that then holds no older ones."""
    folder.mkdir(exist_ok=True)
    drawn = [
        figure
        for scenario in scenarios(analysis.frame)
        for figure in draw_scenario(scenario, analysis, stored.dropped, folder)
    ]
    for old in set(folder.glob("*.png")) - {figure.path for figure in drawn}:
        old.unlink()
    return drawn


def _write_whole(path: Path, text: str) -> None:
    """Write by rename: a reader finds the old page or the new one, never half of one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
