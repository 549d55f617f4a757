"""Runs the cells of a plan, one after another, each stored before the next begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddbench.errors import ConfigError
from ddbench.records import Cell, CellStatus
from experiments.plan import Planned
from experiments.progress import Progress
from experiments.store import RunFolder
from runners.base import CellJob, CellOutcome, EngineFailure, Runner


@dataclass(frozen=True)
class Todo:
    """A cell to be run, and the seconds it was estimated at."""

    planned: Planned
    seconds: float


def run_cells(
    todo: Sequence[Todo], runner: Runner | None, folder: RunFolder, warmup_tokens: int, progress: Progress
) -> None:
    """Runs ``todo`` in order. A cell that fails, or takes the engine down with it, is stored as failed; the rest go on.

    ``runner`` is started already; None where every cell is one that the engine cannot run.
    """
    measure = _never if runner is None else _measurer(runner, warmup_tokens, progress)
    for item in todo:
        cell = item.planned.cell
        place = folder.begin(cell)
        started, clock = datetime.now(UTC), time.perf_counter()
        if item.planned.unsupported is not None:
            outcome = CellOutcome("unsupported", item.planned.unsupported)
        else:
            outcome = measure(cell, place)
        seconds = time.perf_counter() - clock
        folder.finish(cell, place, _status(cell, place, outcome, started, seconds))
        if item.planned.unsupported is None:
            progress.finished(cell, seconds, outcome.status, outcome.reason)


def _status(cell: Cell, place: Path, outcome: CellOutcome, started: datetime, seconds: float) -> CellStatus:
    log = f"cells/{cell.cell_id}/server.log" if (place / "server.log").exists() else None
    return CellStatus(
        status=outcome.status,
        reason=outcome.reason,
        log=log,
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        gpu=outcome.gpu,
        peak_memory_gib=outcome.peak_memory_gib,
    )


def _never(cell: Cell, place: Path) -> CellOutcome:
    raise AssertionError(f"no engine was started for {cell.cell_id}")


def _measurer(runner: Runner, warmup_tokens: int, progress: Progress) -> Callable[[Cell, Path], CellOutcome]:
    down = False

    def measure(cell: Cell, place: Path) -> CellOutcome:
        """One cell; an engine that went down with an earlier one is started again first."""
        nonlocal down
        try:
            if down:
                runner.start()
                down = False
            return runner.run_cell(
                CellJob(cell, place, warmup_tokens), lambda done, total: progress.within(cell, done, total)
            )
        except (EngineFailure, ConfigError) as error:
            down = True
            with (place / "server.log").open("a", encoding="utf-8") as log:
                log.write(f"{error}\n")
            return CellOutcome("failed", str(error))

    return measure
