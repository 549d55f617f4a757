"""``experiment=predict``: the speed of every shape at every batch size, from one recording and one cost file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ddbench.errors import ConfigError
from ddbench.records import FINAL_STATUSES
from ddbench.replay import TraceSet
from ddbench.storage import write_whole
from experiments.predict import elsewhere as other
from experiments.predict.best import best, pays
from experiments.predict.check import check, summary, to_rows
from experiments.predict.settings import Prediction, load
from experiments.predict.surface import Predicted, flat, surface
from experiments.progress import counted, duration, say, warn
from experiments.replay.points import points
from experiments.step_cost.covered import covered
from experiments.store import RunFolder

SHAPE = [
    ("strategy", pa.string()),
    ("width", pa.int32()),
    ("depth", pa.int32()),
    ("nodes", pa.int32()),
    ("force_spine", pa.bool_()),
    ("min_log_prob", pa.float64()),
]
SURFACE = pa.schema(
    [
        *SHAPE,
        ("verify_width", pa.int32()),
        ("batch_size", pa.int32()),
        ("temperature", pa.float64()),
        ("requests", pa.int32()),
        ("acceptance_length", pa.float64()),
        ("context", pa.float64()),
        ("round_ms", pa.float64()),
        ("tokens_per_s_per_user", pa.float64()),
        ("tokens_per_s", pa.float64()),
        ("loop_tokens_per_s_per_user", pa.float64()),
        ("loop_tokens_per_s", pa.float64()),
        ("extrapolated", pa.bool_()),
        ("speedup_vs_autoregressive", pa.float64()),
        ("speedup_vs_dflash", pa.float64()),
        ("predicted", pa.bool_()),  # always true
    ]
)
ELSEWHERE = pa.schema(
    [
        *SHAPE,
        ("batch_size", pa.int32()),
        ("temperature", pa.float64()),
        *((name, pa.float64()) for name in ("floor_here_ms", "floor_there_ms", "stays", "scales", "low", "high")),
        ("extrapolated", pa.bool_()),
        ("predicted", pa.bool_()),
    ]
)


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Predicts; the summary names ``surface``, the table, and has ``check`` where a sweep was given.

    Raises:
        ConfigError: a recording, a cost file, a sweep or a setting that cannot be used.
    """
    if (config.get("predict") or {}).get("lengths") is not None:
        from experiments.predict import published

        return published.run(config, run_id)
    asked = load(config, run_id)
    settings = asked.replayed.settings
    folder = Path(settings.output_dir) / settings.name / settings.run_id
    if (folder / "predicted.json").exists():
        raise ConfigError("run_id", settings.run_id, "a new one: a prediction is made at once")
    if asked.predict.card is not None:
        other.here(asked.cost.fingerprint.get("device", "unknown"), asked.predict.card)
    RunFolder(folder).check_writable()
    recording = asked.replayed.recording
    loaded = asked.replayed.folder.load(recording)
    sets = {at: TraceSet.of(found) for at, found in zip(recording.temperatures, loaded, strict=True)}
    clock = time.perf_counter()
    replayed, _ = points(asked.replayed, sets)
    for reason in dict.fromkeys(each.planned.unsupported for each in replayed):
        if reason is not None:
            warn(f"cannot be replayed: {reason}")
    found = surface(replayed, asked.cost, asked.batch_sizes, asked.predict.extrapolate)
    if not found:
        raise ConfigError("sweep.strategy", list(settings.sweep.strategy), f"some of {', '.join(asked.cost.fits)}")
    shapes = len({each.shape for each in found})
    say(
        f"predicted {counted(shapes, 'shape')} at {counted(len(asked.batch_sizes), 'batch size')} in "
        f"{duration(time.perf_counter() - clock)}"
    )
    checked = check(asked.check, asked.cost, sets) if asked.check is not None else None
    there = _elsewhere(asked, found)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.yaml", yaml.safe_dump(asked.replayed.told(config), sort_keys=False))
    _table(folder / "surface.parquet", SURFACE, [flat(each) for each in found])
    if there:
        _table(folder / "elsewhere.parquet", ELSEWHERE, [other.flat(each) for each in there])
    told: dict[str, Any] = {
        "predicted": True,
        "date": datetime.now(UTC).date().isoformat(),
        "recording": {"setup": recording.setup, "gpu": recording.made["gpu"], "workload": settings.workload.name},
        "model": settings.model.name,
        "cost": {"fingerprint": dict(asked.cost.fingerprint), "source": dict(asked.cost.source)},
        "measured": _ranges(asked),
        "best": [asdict(each) for each in best(found)],
        "pays": [asdict(each) for each in pays(found)],
        "card": asked.predict.card,
        "other_model": asked.other_model,
        "check": None if checked is None else {"summary": summary(checked), "points": to_rows(checked)},
    }
    write_whole(folder / "predicted.json", json.dumps(told, indent=1, allow_nan=False) + "\n")
    from reports.predicted import write_prediction

    report = write_prediction(folder)
    result: dict[str, Any] = {
        "run": str(folder),
        "report": str(report),
        "results": None,
        "cells": dict.fromkeys(FINAL_STATUSES, 0),
        "predicted": True,
        "surface": str(folder / "surface.parquet"),
        "shapes": shapes,
        "points": len(found),
        "without_numbers": sum(each.round_ms is None for each in found),
    }
    if checked is not None:
        result["check"] = summary(checked)
        median = result["check"]["loop_error"]["median"]
        within = result["check"]["inside"]
        told_inside = f"{100 * within['median']:.1f} % of {within['n']}" if within else "none"
        say(
            f"against {counted(len(checked), 'measured point')}: median error {100 * median:.1f} %; "
            f"inside of what the cost was measured in: {told_inside}"
        )
    if result["without_numbers"]:
        outside = counted(result["without_numbers"], "point")
        warn(
            f"{outside} outside of what the cost file was measured in ({covered(asked.cost)}): no numbers; "
            "predict.extrapolate=true gives them, marked"
        )
    return result


def _elsewhere(asked: Prediction, found: Sequence[Predicted]) -> list[other.Elsewhere]:
    if asked.predict.card is None:
        return []
    measured_on = other.here(asked.cost.fingerprint.get("device", "unknown"), asked.predict.card)
    settings, dtype = asked.replayed.settings, str(asked.cost.fingerprint.get("dtype"))
    model = other.model_of(settings, settings.model.target.revision, dtype)
    return other.elsewhere(found, model, measured_on, asked.predict.card)


def _ranges(asked: Prediction) -> dict[str, dict[str, list[float]]]:
    """What the cost was measured in, by kind of step and axis."""
    return {
        kind: {axis: list(ends) for axis, ends in asdict(fit.measured).items()} for kind, fit in asked.cost.fits.items()
    }


def _table(path: Path, schema: pa.Schema, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
