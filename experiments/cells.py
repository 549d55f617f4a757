"""Runs the cells of a plan, one after another, each stored before the next begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddbench.errors import ConfigError
from ddbench.records import Cell, CellStatus
from experiments.fallback import checked
from experiments.plan import Planned
from experiments.progress import Progress
from experiments.roofline import UNKNOWN, Roofline
from experiments.store import RunFolder
from runners.base import CellJob, CellOutcome, EngineFailure, Runner


@dataclass(frozen=True)
class Todo:
    """A cell to be run, and the seconds it was estimated at."""

    planned: Planned
    seconds: float


def run_cells(
    todo: Sequence[Todo],
    runner: Runner | None,
    folder: RunFolder,
    warmup_tokens: int,
    progress: Progress,
    stored: Callable[[str], None] = lambda _: None,
    restart: bool = True,
    roofline: Roofline = UNKNOWN,
) -> None:
    """Runs ``todo`` in order. A cell that fails, or takes the engine down with it, is stored as failed; the rest go on.

    ``runner`` is started already; None where every cell is one that the engine cannot run. ``stored`` is told the id of
    each cell once it is in its place; the next one begins after it has returned. ``restart``: each block of repetition
    is measured on a fresh start of the engine. ``roofline`` is stored with each cell that was measured.
    """
    measure = _never if runner is None else _measurer(runner, warmup_tokens, progress, restart)
    for item in todo:
        cell = item.planned.cell
        place = folder.begin(cell)
        started, clock = datetime.now(UTC), time.perf_counter()
        if item.planned.unsupported is not None:
            outcome = CellOutcome("unsupported", item.planned.unsupported)
        else:
            outcome = measure(cell, place)
        seconds = time.perf_counter() - clock
        folder.finish(cell, place, _status(cell, place, outcome, started, seconds, roofline))
        if item.planned.unsupported is None:
            progress.finished(cell, seconds, outcome.status, outcome.reason)
        stored(cell.cell_id)


def _status(
    cell: Cell, place: Path, outcome: CellOutcome, started: datetime, seconds: float, roofline: Roofline
) -> CellStatus:
    log = f"cells/{cell.cell_id}/server.log" if (place / "server.log").exists() else None
    return CellStatus(
        status=outcome.status,
        reason=outcome.reason,
        log=log,
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        gpu=outcome.gpu,
        peak_memory_gib=outcome.peak_memory_gib,
        build=outcome.build,
        target_weight_bytes=roofline.target_weight_bytes,
        gpu_bytes_per_s=roofline.gpu_bytes_per_s,
    )


def _never(cell: Cell, place: Path) -> CellOutcome:
    raise AssertionError(f"no engine was started for {cell.cell_id}")


def _measurer(
    runner: Runner, warmup_tokens: int, progress: Progress, restart: bool
) -> Callable[[Cell, Path], CellOutcome]:
    down = False
    block: int | None = None  # that the engine was started for

    def measure(cell: Cell, place: Path) -> CellOutcome:
        """One cell; an engine that went down with an earlier one, or served another block, is started anew first."""
        nonlocal down, block
        try:
            if down or (restart and block not in (None, cell.block)):
                runner.start()
                down = False
            block = cell.block
            outcome = runner.run_cell(
                CellJob(cell, place, warmup_tokens), lambda done, total: progress.within(cell, done, total)
            )
            return checked(outcome, cell, place)
        except (EngineFailure, ConfigError) as error:
            down = True
            with (place / "server.log").open("a", encoding="utf-8") as log:
                log.write(f"{error}\n")
            return CellOutcome("failed", str(error))

    return measure
