"""Runs the cells of a plan, one after another, each stored before the next begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from ddbench.records import Attempt, Cell, CellStatus
from experiments.attempts import Measure, measurer, no_engine, repeated
from experiments.diagnosis import DISK_FULL
from experiments.interrupt import Stop
from experiments.outage import HostAway, Outage
from experiments.progress import Progress, counted, describe, warn
from experiments.roofline import UNKNOWN, Roofline
from experiments.settings import FaultSettings
from experiments.store import RunFolder
from experiments.turns import Sharing, Todo, turns
from runners.base import CellOutcome, Runner

# Of a cell: stored, with a final status; lost with its host; or left to whoever comes next, or has it now.
End = Literal["stored", "lost", "left"]

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
    outage: Outage = field(default_factory=Outage)


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
    """Runs ``todo``. A cell that fails, or takes the engine down with it, is stored as failed; the rest go on. One that
    was lost with a host is not stored.

    ``runner`` is started already; None where every cell is one that the engine cannot run. ``stored`` is told the id of
    each cell once it is in its place; the next one begins after it has returned. ``roofline`` is stored with each cell
    that was measured. Ends after the running cell where ``stop`` was asked.

    Raises:
        DiskFull: no space is left for a cell.
        HostAway: the host does not come back; or cells were lost with it again and again, and all others are done.
    """
    stop = stop or Stop()
    lost: list[Todo] = []
    lasting: set[str] = set()  # why engines do not start here
    measure, idle = (no_engine, lambda: None) if runner is None else measurer(runner, rules, progress)
    for item in turns(todo, folder, rules.sharing, stop, progress.elsewhere, idle):
        try:
            with stop.patiently():
                end = _run(item, folder, measure, rules, progress, roofline, stop, lasting)
        except OSError as error:
            if not DISK_FULL.search(str(error)):
                raise
            raise DiskFull(f"{folder.path}: {error.strerror}") from error
        if end == "lost":
            lost.append(item)
        if end == "stored":
            stored(item.planned.cell.cell_id)
    left = [item for item in lost if folder.stamp(item.planned.cell) == item.seen]
    if left:
        raise HostAway(f"{counted(len(left), 'cell')} lost with the host at every try and left unmeasured")


def _run(
    item: Todo,
    folder: RunFolder,
    measure: Measure,
    rules: Rules,
    progress: Progress,
    roofline: Roofline,
    stop: Stop,
    lasting: set[str],
) -> End:
    """One cell, measured and stored."""
    cell = item.planned.cell
    started, clock = datetime.now(UTC), time.perf_counter()
    attempts: tuple[Attempt, ...] = ()
    if item.planned.unsupported is not None:
        place, outcome = folder.begin(cell), CellOutcome("unsupported", item.planned.unsupported)
    else:
        place, outcome, attempts = repeated(cell, folder, measure, rules.faults, stop, rules.outage, lasting)
    seconds = time.perf_counter() - clock
    if outcome.kind == "disk":
        raise DiskFull(f"{folder.path}: {outcome.reason}")
    if outcome.kind is not None and outcome.kind != "memory" and stop.asked is not None:
        return "left"  # broken off, and not tried again since the sweep is to end: the next one does that
    if outcome.kind == "lost" and rules.outage.remote:
        progress.elsewhere()
        warn(f"{describe(cell)}: {outcome.reason}; it is left unmeasured")
        return "lost"
    if not folder.claims.holds(cell.cell_id):
        warn(f"cells/{cell.cell_id}: another process has taken this cell over; what was measured here is dropped")
        return "left"
    if not folder.finish(cell, place, _status(cell, place, outcome, attempts, started, seconds, roofline)):
        return "left"
    if item.planned.unsupported is None:
        progress.finished(cell, seconds, outcome.status, outcome.reason)
    return "stored"


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
