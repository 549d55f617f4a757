"""``experiment=report``: tables, figures and report of a run from its stored files alone; or two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddbench.errors import ConfigError
from ddbench.records import FINAL_STATUSES
from ddbench.redaction import redacted
from experiments.interrupt import Interrupted, interruptible
from experiments.progress import counted, say, warn
from experiments.settings import ReportSettings, TrackingSettings
from experiments.store import RunFolder
from experiments.typed import build

if TYPE_CHECKING:
    from reports.tracking import Recorder


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Rebuilds the report of the folder ``config["run"]``, or with ``config["against"]`` compares the two runs.

    Returns the summary that is printed last.

    Raises:
        ConfigError: no such run, one without a finished cell, or a run against itself.
    """
    computed = _computed(config.get("run"))
    if computed is not None:
        return computed
    folder = _finished("run", config.get("run"))
    if config.get("against") is not None:
        logged = config.get("tracking", {}).get("mode", "disabled") != "disabled"
        return _compare(folder, _finished("against", config["against"]), logged)
    tracking = build(TrackingSettings, config.get("tracking", {}), "tracking")
    with tracker(tracking, folder) as recorder:
        return summarise(folder, build(ReportSettings, config.get("report", {}), "report"), recorder)


def _computed(given: object) -> dict[str, Any] | None:
    """The page of a prediction, a step cost or a comparison of policies, again: these have no cells. Else None."""
    folder = Path(given) if isinstance(given, str) else Path()
    if (folder / "predicted.json").is_file():
        from reports.predicted import write_prediction

        page = write_prediction(folder)
    elif (folder / "published.json").is_file():
        from reports.published_speed import write_published

        page = write_published(folder)
    elif (folder / "adaptive.json").is_file():
        from reports.adaptive import write_comparison

        page = write_comparison(folder)
    elif (folder / "cost.json").is_file():
        from experiments.step_cost.page import write_page

        page = write_page(folder, folder / "cost.json")
    else:
        return None
    return {"run": str(folder), "report": str(page), "results": None, "cells": dict.fromkeys(FINAL_STATUSES, 0)}


def _finished(key: str, given: object) -> RunFolder:
    """The run folder that a setting names."""
    if not isinstance(given, str) or not (Path(given) / "cells").is_dir():
        raise ConfigError(key, given, "the folder of a run, as printed at its end")
    folder = RunFolder(Path(given))
    if not folder.ids():
        raise ConfigError(key, given, "a run with at least one finished cell")
    return folder


def _compare(folder: RunFolder, against: RunFolder, logged: bool) -> dict[str, Any]:
    """Writes the page of two runs into the first one's folder; the summary counts the cells of both.

    ``logged``: the tracking asked for, which there is none of here, would log something.
    """
    from reports.compare import build_comparison

    if folder.path.resolve() == against.path.resolve():
        raise ConfigError("against", str(against.path), "another run than run=")
    if logged:
        warn("a comparison is not logged to W&B: tracking is ignored with against=")
    say(f"comparing {folder.path} with {against.path}")
    paths = build_comparison(folder.path, against.path)
    ours, theirs = (each.counts(cells) for each, cells in zip((folder, against), paths.suspect_cells, strict=True))
    return {
        "run": str(folder.path),
        "report": str(paths.report),
        "results": str(paths.results),
        "cells": {status: ours[status] + theirs[status] for status in ours},
    }


def tracker(tracking: TrackingSettings, folder: RunFolder) -> Recorder:
    """What logs the run folder to W&B, not yet started; one that does nothing where that is not asked for."""
    from reports.tracking import Recorder, WandbSettings

    mode = "disabled" if tracking.name == "none" else tracking.mode
    tags = redacted(tracking.tags)
    return Recorder(
        WandbSettings(mode, tracking.project, tracking.entity, tags, tracking.cells, tracking.timeout_s),
        folder.path,
    )


def summarise(folder: RunFolder, report: ReportSettings, recorder: Recorder) -> dict[str, Any]:
    """Builds the report of a run and returns contract 3's object: folder, report, results and cells by status.

    A cell is counted as suspect too where the report found its point suspect. A first SIGINT or SIGTERM ends this in
    good order: the object then has ``interrupted``, and no report where that was not written yet.
    """
    summary: dict[str, Any] = {"run": str(folder.path), "report": None, "results": None, "cells": folder.counts()}
    try:
        with interruptible():
            summary |= _report(folder, report)
            _warn(summary["cells"])
            recorder.report()
            recorder.close()
    except Interrupted as signal:
        if summary["report"] is None:
            warn(f"{signal.name}: the report is not whole; experiment=report run={folder.path} builds it again")
        else:
            warn(f"{signal.name}: the report is whole, its copy for W&B perhaps not")
        summary["interrupted"] = signal.name
    return summary


def _report(folder: RunFolder, report: ReportSettings) -> dict[str, Any]:
    """Writes the report; where it is, and the cells by status."""
    from reports import build_report

    say(f"writing the report of {folder.path}")
    finished = folder.ids()  # reads every status.json
    lost = sorted(path.name for path in folder.cells.iterdir() if path.is_dir() and path.name not in finished)
    if lost:
        warn(f"{len(lost)} cells have no readable final status and are left out: {', '.join(lost[:5])}")
    for name in sorted(finished):
        broken = folder.broken(name)
        if broken is not None:
            warn(f"cells/{name}/{broken} is missing or damaged: the cell counts as failed")
    paths = build_report(folder.path, figures=report.figures)
    return {"report": str(paths.report), "results": str(paths.results), "cells": folder.counts(paths.suspect_cells)}


def _warn(cells: dict[str, int]) -> None:
    """One line for each kind of cell that is no evidence, and one where there is no evidence at all."""
    for status in ("failed", "suspect"):
        if cells[status]:
            warn(f"{counted(cells[status], 'cell')} {status}: see the report for the reasons")
    if cells["unsupported"] and cells["unsupported"] == sum(cells.values()):
        warn("nothing was measured: the engine cannot run any of these cells")
