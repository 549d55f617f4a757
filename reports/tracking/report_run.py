"""The last W&B run of a run folder, job type ``report``: curves, tables, figures, page, and the files as artifacts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import yaml

from reports.choose import RATE, labelled, usable
from reports.frames import records, to_frame
from reports.names import given_names
from reports.tracking.session import add_files, wandb_run
from reports.tracking.settings import WandbSettings

CURVES = (
    "acceptance_length",
    "tokens_per_s",
    "tokens_per_s_per_user",
    "step_ms",
    "speedup_vs_autoregressive",
    "speedup_vs_dflash",
    "lossless_share",
)
BEST = ("label", "batch_size", RATE, "tokens_per_s", "acceptance_length", "speedup_vs_autoregressive")
PAGE = ("report.md", "report.html", "results.csv")
DATA = ("results.parquet", "config.yaml", "environment.json", "dropped.json")
TABLES = ("requests", "rounds", "telemetry")


def log_report_run(settings: WandbSettings, folder: Path, run_id: str | None = None) -> None:
    """Logs what a run folder holds after its report was built; ``results.parquet`` must be there.

    ``run_id``: the id that a sweep of W&B's own gave this process; None: the folder's name with ``-report``.
    """
    import wandb

    results = to_frame(pq.read_table(folder / "results.parquet"))
    results.attrs["drafters"] = given_names(_config(folder))
    frame = labelled(results)
    figures = sorted((folder / "figures").glob("*.png"))
    with wandb_run(
        settings,
        folder,
        run_id=run_id or f"{folder.name}-report",
        job_type="report",
        name=f"{folder.parent.name}/{folder.name}",
        config={"config": _config(folder), "environment": _environment(folder)},
    ) as run:
        _curves(run, frame)
        run.log({"results": wandb.Table(dataframe=_plain(frame))})
        run.log({f"figures/{path.stem}": wandb.Image(str(path)) for path in figures})
        if (folder / "report.html").is_file():
            run.log({"report": wandb.Html(str(folder / "report.html"), inject=False)})
        page = wandb.Artifact(f"report-{folder.name}", type="report")
        add_files(page, folder, [*(folder / name for name in PAGE), *figures])
        run.log_artifact(page)
        data = wandb.Artifact(f"data-{folder.name}", type="run-data")
        stored = [path for table in TABLES for path in sorted(folder.glob(f"cells/*/{table}.parquet"))]
        add_files(data, folder, [*(folder / name for name in DATA), *stored])
        run.log_artifact(data)
        run.summary["points"] = len(frame)
        run.summary.update({f"points_{status}": int(n) for status, n in frame["status"].value_counts().items()})
        run.summary.update({f"best/{name}": value for name, value in _best(frame).items()})


def sweep_identity() -> dict[str, str]:
    """What an agent of a W&B sweep put into the environment: taken out, so that no cell's run takes it for its own."""
    names = ("WANDB_SWEEP_ID", "WANDB_RUN_ID")
    return {name: value for name in names if (value := os.environ.pop(name, None)) is not None}


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
        if row["nodes"] is not None and row["policy"] is None:
            logged |= {f"{name}_by_nodes/{metric}": value for metric, value in values.items()}
            logged[f"{name}_by_nodes/nodes"] = int(row["nodes"])
        run.log(logged)


def _best(frame: pd.DataFrame) -> dict[str, Any]:
    """The usable point of the highest decode rate per user: what a sweep of W&B's own can maximise."""
    ordered = records(usable(frame).sort_values(RATE, ascending=False, kind="stable").head(1))
    return {name: row[name] for row in ordered for name in BEST if row[name] is not None}


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Object columns with None for nulls, and lists as text: what a W&B table takes."""
    plain = frame.astype(object)
    for name in frame.columns:
        plain[name] = [_cell(value) for value in frame[name]]
    return plain


def _cell(value: Any) -> Any:
    if pd.api.types.is_list_like(value):
        return ";".join(map(str, value))
    return None if pd.isna(value) else value


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    loaded = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    return loaded if isinstance(loaded, dict) else {}


def _environment(folder: Path) -> dict[str, Any]:
    path = folder / "environment.json"
    loaded = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return loaded if isinstance(loaded, dict) else {}
