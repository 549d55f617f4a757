"""Runs the cells of a plan, one after another, each stored before the next begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from ddbench.records import Attempt, Cell, CellStatus
from experiments.attempts import Measure, measurer, no_engine, repeated
from experiments.diagnosis import DISK_FULL
from experiments.interrupt import Stop
from experiments.progress import Progress, warn
from experiments.roofline import UNKNOWN, Roofline
from experiments.settings import FaultSettings
from experiments.store import RunFolder
from experiments.turns import Sharing, Todo, turns
from runners.base import CellOutcome, Runner

__all__ = ["DiskFull", "Rules", "Todo", "run_cells"]


class DiskFull(Exception):
    """Nothing more can be stored: the sweep ends here, and goes on with its ``run_id`` once there is room."""


@dataclass(frozen=True)
class Rules:
    """How cells are run. ``restart``: each block of repetition is measured on a fresh start of the engine."""

    warmup_tokens: int
    restart: bool = True
    faults: FaultSettings = field(default_factory=FaultSettings)
    sharing: Sharing = field(default_factory=Sharing)


def run_cells(
    todo: Sequence[Todo],
    runner: Runner | None,
    folder: RunFolder,
    rules: Rules,
    progress: Progress,
    stored: Callable[[str], None] = lambda _: None,
    roofline: Roofline = UNKNOWN,
    stop: Stop | None = None,
) -> None:
    """Runs ``todo``. A cell that fails, or takes the engine down with it, is stored as failed; the rest go on.

    ``runner`` is started already; None where every cell is one that the engine cannot run. ``stored`` is told the id of
    each cell once it is in its place; the next one begins after it has returned. ``roofline`` is stored with each cell
    that was measured. Ends after the running cell where ``stop`` was asked.

    Raises:
        DiskFull: no space is left for a cell.
    """
    stop = stop or Stop()
    measure, idle = (no_engine, lambda: None) if runner is None else measurer(runner, rules, progress)
    for item in turns(todo, folder, rules.sharing, stop, progress.elsewhere, idle):
        try:
            with stop.patiently():
                done = _run(item, folder, measure, rules, progress, roofline, stop)
        except OSError as error:
            if not DISK_FULL.search(str(error)):
                raise
            raise DiskFull(f"{folder.path}: {error.strerror}") from error
        if done:
            stored(item.planned.cell.cell_id)


def _run(
    item: Todo, folder: RunFolder, measure: Measure, rules: Rules, progress: Progress, roofline: Roofline, stop: Stop
) -> bool:
    """One cell, measured and stored; False where it has no final status, or not from here."""
    cell = item.planned.cell
    started, clock = datetime.now(UTC), time.perf_counter()
    attempts: tuple[Attempt, ...] = ()
    if item.planned.unsupported is not None:
        place, outcome = folder.begin(cell), CellOutcome("unsupported", item.planned.unsupported)
    else:
        place, outcome, attempts = repeated(cell, folder, measure, rules.faults, stop)
    seconds = time.perf_counter() - clock
    if outcome.kind == "disk":
        raise DiskFull(f"{folder.path}: {outcome.reason}")
    if outcome.kind is not None and outcome.kind != "memory" and stop.asked is not None:
        return False  # broken off, and not tried again since the sweep is to end: the next one does that
    if not folder.claims.holds(cell.cell_id):
        warn(f"cells/{cell.cell_id}: another process has taken this cell over; what was measured here is dropped")
        return False
    if not folder.finish(cell, place, _status(cell, place, outcome, attempts, started, seconds, roofline)):
        return False
    if item.planned.unsupported is None:
        progress.finished(cell, seconds, outcome.status, outcome.reason)
    return True


def _status(
    cell: Cell,
    place: Path,
    outcome: CellOutcome,
    attempts: tuple[Attempt, ...],
    started: datetime,
    seconds: float,
    roofline: Roofline,
) -> CellStatus:
    here = f"cells/{cell.cell_id}"
    return CellStatus(
        status=outcome.status,
        reason=outcome.reason,
        log=f"{here}/server.log" if (place / "server.log").exists() else None,
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        gpu=outcome.gpu,
        peak_memory_gib=outcome.peak_memory_gib,
        build=outcome.build,
        target_weight_bytes=roofline.target_weight_bytes,
        gpu_bytes_per_s=roofline.gpu_bytes_per_s,
        kind=outcome.kind,
        attempts=tuple(replace(each, log=each.log and f"{here}/{each.log}") for each in attempts),
        tables=tuple(sorted(path.name for path in place.glob("*.parquet"))),
        start_temperature_c=outcome.start_temperature_c,
        cooling_s=outcome.cooling_s,
    )
