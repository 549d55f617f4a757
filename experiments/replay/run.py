"""``experiment=replay``: read the traces, compute the grid, write what a sweep would have written, clocks null."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddbench.records import CellStatus
from ddbench.replay import TraceSet
from experiments.progress import counted, duration, say, warn
from experiments.record.folder import Recording
from experiments.replay.points import Point, points
from experiments.replay.settings import Asked, load
from experiments.replay.tables import RequestTables, write_surface
from experiments.report import summarise, tracker
from experiments.store import RunFolder
from runners.machine import machine_facts


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """A replay, from its composed configuration to the summary that is printed last.

    The summary has a sweep's keys, ``surface``, the table of all points, and ``check`` where one was asked for.

    Raises:
        ConfigError: any setting, recording or shape that cannot be used.
    """
    asked = load(config, run_id)
    folder = RunFolder(Path(asked.settings.output_dir) / asked.settings.name / asked.settings.run_id)
    folder.check_writable()
    clock = time.perf_counter()
    loaded = asked.folder.load(asked.recording)
    sets = {at: TraceSet.of(found) for at, found in zip(asked.recording.temperatures, loaded, strict=True)}
    read_s, clock = time.perf_counter() - clock, time.perf_counter()
    computed, dropped = points(asked, sets)
    compute_s = time.perf_counter() - clock
    able = [point for point in computed if point.outcome is not None]
    for reason in dict.fromkeys(point.planned.unsupported for point in computed):
        if reason is not None:
            warn(f"cannot be replayed: {reason}")
    say(
        f"read {counted(sum(map(len, loaded)), 'trace')} in {duration(read_s)}, "
        f"replayed {counted(len(able), 'point')} in {duration(compute_s)}"
    )
    environment = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **machine_facts(),
        "replayed": {"recording": str(asked.folder.path), "read_s": read_s, "compute_s": compute_s},
    }
    listed = len(computed) <= asked.replay.report_points
    folder.open(asked.told(config), environment, dropped, tuple(point.planned for point in computed) if listed else ())
    surface = folder.path / "surface.parquet"
    write_surface(surface, able)
    summary = _reported(asked, folder, computed) if listed else _unreported(folder, computed)
    summary["surface"] = str(surface)
    return summary if not asked.check else _checked(asked, folder, able, summary)


def _reported(asked: Asked, folder: RunFolder, computed: list[Point]) -> dict[str, Any]:
    """Writes every point as a cell, and the report of the run."""
    tables: dict[int, RequestTables] = {}
    for point in computed:
        cell = point.planned.cell
        place = folder.begin(cell)
        if point.outcome is not None:
            shared = tables.setdefault(id(point.traces), RequestTables(point.traces))
            shared.write(place, cell, point.outcome)
        folder.finish(cell, place, _status(point, asked.recording))
    folder.close()
    with tracker(asked.settings.tracking, folder) as recorder:
        return summarise(folder, asked.settings.report, recorder)


def _unreported(folder: RunFolder, computed: list[Point]) -> dict[str, Any]:
    say(f"{counted(len(computed), 'point')}: more than replay.report_points, so that surface.parquet is all there is")
    folder.close()
    return {"run": str(folder.path), "report": None, "results": None, "cells": folder.counts()}


def _status(point: Point, recording: Recording) -> CellStatus:
    """Of a cell that took no time of an engine."""
    return CellStatus(
        status="unsupported" if point.outcome is None else "ok",
        reason=point.planned.unsupported,
        log=None,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        gpu=recording.made["gpu"],
        peak_memory_gib=None,
        build=recording.made["build"],
    )


def _checked(asked: Asked, folder: RunFolder, able: list[Point], summary: dict[str, Any]) -> dict[str, Any]:
    from experiments.replay.check import check

    found = check(asked, able, folder.path / "check.json")
    summary["check"] = found
    if found.get("unexplained"):
        apart = counted(found["unexplained"], "request")
        summary["error"] = f"check: {apart} not explained, see {folder.path / 'check.json'}"
    elif found["shapes_equal"] < found["shapes_checked"] and asked.settings.engine.dtype == "float32":
        apart = counted(found["shapes_checked"] - found["shapes_equal"], "shape")
        summary["error"] = f"check: {apart} not as decoded, see {folder.path / 'check.json'}"
    return summary
