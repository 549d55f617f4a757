"""Weights & Biases: a copy of the report for those who want it, never the only one, never a reason to fail."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ddbench.errors import ConfigError
from reports.aggregate import Analysis
from reports.choose import labelled
from reports.frames import Stored, records

log = logging.getLogger(__name__)

MODES = ("offline", "online", "disabled")
CURVES = (
    "acceptance_length",
    "tokens_per_s",
    "tokens_per_s_per_user",
    "step_ms",
    "speedup_vs_autoregressive",
    "speedup_vs_dflash",
    "lossless_share",
)


@dataclass(frozen=True)
class WandbSettings:
    """``mode`` is offline (files below the run folder, no key, no network), online or disabled."""

    mode: str = "offline"
    project: str = "ddbench"
    entity: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError("tracking.mode", self.mode, f"one of {', '.join(MODES)}")


def log_report(
    settings: WandbSettings, stored: Stored, analysis: Analysis, report: Path, results: Path, figures: Sequence[Path]
) -> bool:
    """Log one run of job type ``report``: curves, results table, figures, and the files as an artifact.

    Returns whether it was logged. Whatever goes wrong inside W&B becomes one warning, with its reason.
    """
    if settings.mode == "disabled":
        return False
    if importlib.util.find_spec("wandb") is None:
        log.warning("W&B: the package is not installed, nothing is logged (pip install 'ddbench[wandb]')")
        return False
    try:
        _log(settings, stored, analysis, report, results, figures)
    except Exception as error:  # noqa: BLE001 - a tracker's fault is no fault of the run's
        log.warning("W&B: not logged (%s: %s)", type(error).__name__, error)
        return False
    return True


def _log(
    settings: WandbSettings, stored: Stored, analysis: Analysis, report: Path, results: Path, figures: Sequence[Path]
) -> None:
    import wandb

    folder = stored.run.resolve()
    frame = labelled(analysis.frame)
    run = wandb.init(
        project=settings.project,
        entity=settings.entity,
        mode=settings.mode,  # type: ignore[arg-type]
        tags=list(settings.tags),
        dir=str(folder),
        id=f"{folder.name}-report",
        name=f"{folder.parent.name}/{folder.name}",
        group=folder.name,
        job_type="report",
        resume="allow",
        config={"config": stored.config, "environment": stored.environment},
        settings=wandb.Settings(silent=True, console="off"),
    )
    failed = True
    try:
        _curves(run, frame)
        run.log({"results": wandb.Table(dataframe=_plain(frame))})
        run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in figures})
        artifact = wandb.Artifact(f"report-{folder.name}", type="report")
        for path in (report, results, folder / "results.csv"):
            artifact.add_file(str(path))
        run.log_artifact(artifact)
        run.summary["points"] = len(frame)
        failed = False
    finally:
        run.finish(exit_code=int(failed))


def _curves(run: Any, frame: pd.DataFrame) -> None:
    """One step a point; every strategy's curves are drawn against batch size, and trees' against nodes too."""
    for strategy in frame["strategy"].unique():
        run.define_metric(f"{strategy}/batch_size")
        run.define_metric(f"{strategy}/nodes")
        run.define_metric(f"{strategy}/*", step_metric=f"{strategy}/batch_size")
        run.define_metric(f"{strategy}_by_nodes/nodes")
        run.define_metric(f"{strategy}_by_nodes/*", step_metric=f"{strategy}_by_nodes/nodes")
    for row in records(frame):
        name = row["strategy"]
        values = {metric: float(row[metric]) for metric in CURVES if row[metric] is not None}
        if not values:
            continue
        logged = {f"{name}/{metric}": value for metric, value in values.items()}
        logged[f"{name}/batch_size"] = int(row["batch_size"])
        if row["nodes"] is not None:
            logged |= {f"{name}_by_nodes/{metric}": value for metric, value in values.items()}
            logged[f"{name}_by_nodes/nodes"] = int(row["nodes"])
        run.log(logged)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Object columns with None for nulls, and no lists: what a W&B table takes."""
    plain = frame.astype(object).where(frame.notna(), None)
    plain["cell_ids"] = [";".join(ids) for ids in frame["cell_ids"]]
    return plain
