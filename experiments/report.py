"""``experiment=report``: tables, figures and report of a run from its stored files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.progress import say, warn
from experiments.settings import ReportSettings, TrackingSettings
from experiments.store import RunFolder
from experiments.typed import build


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Rebuilds the report of the folder ``config["run"]``; returns the summary that is printed last.

    Raises:
        ConfigError: no such run, or one without a finished cell.
    """
    given = config.get("run")
    if not isinstance(given, str) or not (Path(given) / "cells").is_dir():
        raise ConfigError("run", given, "the folder of a run, as printed at its end")
    folder = RunFolder(Path(given))
    if not folder.ids():
        raise ConfigError("run", given, "a run with at least one finished cell")
    return summarise(
        folder,
        build(ReportSettings, config.get("report", {}), "report"),
        build(TrackingSettings, config.get("tracking", {}), "tracking"),
    )


def summarise(folder: RunFolder, report: ReportSettings, tracking: TrackingSettings) -> dict[str, Any]:
    """Builds the report of a run and returns contract 3's object: folder, report, results and cells by status."""
    from reports import WandbSettings, build_report

    say(f"writing the report of {folder.path}")
    wandb = None
    if tracking.name == "wandb" and tracking.mode != "disabled":
        wandb = WandbSettings(tracking.mode, tracking.project, tracking.entity, tracking.tags)
    finished = folder.ids()  # reads every status.json
    lost = sorted(path.name for path in folder.cells.iterdir() if path.is_dir() and path.name not in finished)
    if lost:
        warn(f"{len(lost)} cells have no readable final status and are left out: {', '.join(lost[:5])}")
    paths = build_report(folder.path, wandb=wandb, figures=report.figures)
    return {
        "run": str(folder.path),
        "report": str(paths.report),
        "results": str(paths.results),
        "cells": folder.counts(),
    }
