"""One W&B run a cell, job type ``cell``, with the cell's id as its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from ddbench.records import REQUESTS, Cell
from reports.frames import MEASURED, read_table, records
from reports.tracking.scalars import baseline_key, cell_config, cell_scalars, drafted_nodes
from reports.tracking.session import add_files, wandb_run
from reports.tracking.settings import WandbSettings

# Drawn against batch size and against drafted nodes.
CURVES = (
    "acceptance_length",
    "tokens_per_s",
    "tokens_per_s_per_user",
    "step_ms",
    "speedup_vs_autoregressive",
    "lossless_share",
)
AXES = ("batch_size", "nodes")
SHOWN = (
    "prompt_id",
    "turn",
    "category",
    "repeat",
    "prompt_tokens",
    "output_tokens",
    "rounds",
    "drafted",
    "accepted",
    "ttft_s",
    "latency_s",
    "finish_reason",
    "error",
)
MOST_ROWS = 500  # of the table that a dashboard shows; the artifact has all


class Baselines:
    """The autoregressive cells of a run folder, by what a cell must share with the one it is held against."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}
        for path in sorted((folder / "cells").glob("*/cell.yaml")):
            text = path.read_text(encoding="utf-8")
            if "strategy: autoregressive" in text:  # parsing all of a long run's cells would take seconds
                self.add(_cell(text))

    def add(self, cell: Cell) -> None:
        """Remembers ``cell`` if it is one."""
        if cell.arm.strategy == "autoregressive":
            self._known[baseline_key(cell)] = cell.cell_id

    def requests(self, cell: Cell) -> pd.DataFrame | None:
        """The request rows of the autoregressive cell of ``cell``; None where none has been measured."""
        cell_id = self._known.get(baseline_key(cell))
        if cell_id is None or _status(self._folder / "cells" / cell_id)["status"] not in MEASURED:
            return None
        return read_table(self._folder / "cells" / cell_id / "requests.parquet", REQUESTS)


def log_cell(settings: WandbSettings, folder: Path, cell_id: str, baselines: Baselines) -> None:
    """Logs a finished cell: configuration, final numbers, one step of its curves, requests as table and as files.

    A cell that failed ends its run with exit code 1, so that W&B shows it as failed.
    """
    place = folder / "cells" / cell_id
    cell = _cell((place / "cell.yaml").read_text(encoding="utf-8"))
    status = _status(place)
    baselines.add(cell)
    environment = folder / "environment.json"
    facts = json.loads(environment.read_text(encoding="utf-8")) if environment.is_file() else {}
    with wandb_run(
        settings,
        folder,
        run_id=cell_id,
        job_type="cell",
        name=_name(cell),
        config=cell_config(cell, facts, status["gpu"], folder.name),
        exit_code=int(status["status"] == "failed"),
    ) as run:
        for name in ("status", "reason", "seconds", "peak_memory_gib"):
            if status[name] is not None:
                run.summary[name] = status[name]
        _files(run, folder, place, cell_id, status["status"])
        if status["status"] in MEASURED:
            requests = read_table(place / "requests.parquet", REQUESTS)
            scalars = cell_scalars(cell, requests, baselines.requests(cell))
            run.log({**_curves(run, cell, scalars), "requests_table": _table(requests)})
            run.summary.update(scalars)


def started(folder: Path, cell_id: str) -> str:
    """When the cell was measured: a cell that failed and was run again under the same id has another time."""
    return str(_status(folder / "cells" / cell_id)["started"])


def _curves(run: Any, cell: Cell, scalars: dict[str, float | int]) -> dict[str, float | int]:
    """A step of history: numbers under ``by_batch_size/`` and ``by_nodes/``, with the axes they are drawn against."""
    axes = {"batch_size": cell.batch_size, "nodes": drafted_nodes(cell)}
    row: dict[str, float | int] = {}
    for axis in AXES:
        value = axes[axis]
        if value is None:
            continue
        run.define_metric(axis, hidden=True)
        run.define_metric(f"by_{axis}/*", step_metric=axis)
        row[axis] = value
        row |= {f"by_{axis}/{name}": scalars[name] for name in CURVES if name in scalars}
    return row


def _table(requests: pd.DataFrame) -> Any:
    import wandb

    rows = [list(row.values()) for row in records(requests[list(SHOWN)].head(MOST_ROWS))]
    return wandb.Table(columns=list(SHOWN), data=rows, allow_mixed_types=True)


def _files(run: Any, folder: Path, place: Path, cell_id: str, status: str) -> None:
    """All that the cell stored; its log only where something was wrong."""
    import wandb

    artifact = wandb.Artifact(f"cell-{cell_id}", type="cell")
    files = [path for path in sorted(place.iterdir()) if path.name != "server.log" or status != "ok"]
    add_files(artifact, place, files)
    run.log_artifact(artifact)


def _name(cell: Cell) -> str:
    arm = cell.arm
    shape = "".join(
        f" {short}{getattr(arm, axis)}"
        for short, axis in (("w", "width"), ("d", "depth"), ("n", "nodes"))
        if getattr(arm, axis) is not None
    )
    heat = f" T{cell.temperature:g}" if cell.temperature else ""
    block = f" block {cell.block}" if cell.block else ""
    policy = f" {arm.policy}" if arm.policy is not None else ""
    return f"{arm.strategy}{policy}{shape} b{cell.batch_size}{heat}{block}"


def _cell(text: str) -> Cell:
    return Cell.from_dict(yaml.safe_load(text))


def _status(place: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((place / "status.json").read_text(encoding="utf-8"))
    return data
