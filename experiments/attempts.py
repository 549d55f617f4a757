"""One cell, tried again where something broke that was no fault of its arm."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ddbench.errors import ConfigError
from ddbench.records import Attempt, Cell
from experiments.diagnosis import INFRASTRUCTURE, diagnosed
from experiments.fallback import checked
from experiments.interrupt import Stop
from experiments.outage import Outage
from experiments.progress import Progress, describe, duration, warn
from experiments.settings import FaultSettings
from experiments.store import RunFolder
from runners.base import CellJob, CellOutcome, EngineFailure, Runner
from runners.out_of_memory import kernel_kills

if TYPE_CHECKING:
    from experiments.cells import Rules

POLL_S = 0.1
BUSY_S = 5.0  # between two looks at a GPU that another engine holds
LOG = "server.log"

Measure = Callable[[Cell, Path], CellOutcome]


def repeated(
    cell: Cell,
    folder: RunFolder,
    measure: Measure,
    faults: FaultSettings,
    stop: Stop,
    outage: Outage | None = None,
    lasting: set[str] | None = None,
) -> tuple[Path, CellOutcome, tuple[Attempt, ...]]:
    """Measures a cell, and again, ``faults.retries`` times at most, while it is an infrastructure that breaks.

    A GPU that another engine holds is waited for, which is no try. A cell that failed while its host, that of
    ``outage``, does not answer is ``lost``, whatever it looked like; the host is waited for. A cell that was lost with
    a host is tried at least once more.

    ``lasting``: why starts of engines failed, twice in the same way. Another that fails so at its start is not tried
    again: what is wrong is no arm's own. Added to.

    Returns the folder and the outcome of the last try, and the tries before it. Their logs are ``attempt-<n>.log`` of
    the folder.

    Raises:
        HostAway: the host does not come back.
        OSError: a folder cannot be made.
    """
    outage = outage or Outage()
    lasting = set() if lasting is None else lasting
    attempts: list[Attempt] = []
    logs: list[bytes] = []
    told, until = False, time.monotonic() + faults.gpu_wait_s
    while True:
        place = folder.begin(cell)
        for number, data in enumerate(logs, 1):
            (place / f"attempt-{number}.log").write_bytes(data)
        started, clock, killed = datetime.now(UTC), time.perf_counter(), kernel_kills()
        outcome = diagnosed(measure(cell, place), place / LOG, cell.arm.engine, killed)
        kind = outcome.kind if outcome.status == "failed" else None
        if kind == "busy" and stop.asked is None and time.monotonic() < until:
            if not told:
                told = True
                warn(f"{outcome.reason}; waiting for it, {duration(faults.gpu_wait_s)} at most")
            _wait(BUSY_S, stop)
            continue
        retries = faults.retries
        if outcome.status == "failed" and kind not in ("memory", "disk") and stop.asked is None and outage.wait(stop):
            kind = "lost"  # whatever it looked like
            outcome = replace(outcome, kind=kind)
        if kind == "lost" and outage.remote:
            retries = max(1, retries)
        reason = outcome.reason or ""
        if kind == "start" and any(each.kind == "start" and each.reason == reason for each in attempts):
            lasting.add(reason)
        known = kind == "start" and not attempts and reason in lasting
        if kind not in INFRASTRUCTURE or known or len(attempts) >= retries or stop.asked is not None:
            return place, outcome, tuple(attempts)
        warn(f"{describe(cell)}: {reason}; try {len(attempts) + 2} of {retries + 1}")
        log = place / LOG
        logs.append(log.read_bytes() if log.exists() else b"")
        attempts.append(
            Attempt(
                kind,
                reason,
                started.isoformat(timespec="seconds"),
                time.perf_counter() - clock,
                f"attempt-{len(logs)}.log",
            )
        )
        _wait(faults.retry_wait_s, stop)


def measurer(runner: Runner, rules: Rules, progress: Progress) -> tuple[Measure, Callable[[], None]]:
    """What measures a cell with a started runner, and what ends the engine while there is nothing to measure."""
    down = False
    block: int | None = None  # that the engine was started for

    def measure(cell: Cell, place: Path) -> CellOutcome:
        """One cell; an engine that went down with an earlier one, or served another block, is started anew first."""
        nonlocal down, block
        try:
            if down or (rules.restart and block not in (None, cell.block)):
                down = True
                runner.start()
                down = False
            block = cell.block
            outcome = runner.run_cell(
                CellJob(cell, place, rules.warmup_tokens), lambda done, total: progress.within(cell, done, total)
            )
            return checked(outcome, cell, place)
        except (EngineFailure, ConfigError) as error:
            down = True
            with (place / LOG).open("a", encoding="utf-8") as log:
                log.write(f"{error}\n")
            return CellOutcome("failed", str(error), kind=getattr(error, "kind", None))

    def idle() -> None:
        nonlocal down
        runner.stop()
        down = True

    return measure, idle


def no_engine(cell: Cell, place: Path) -> CellOutcome:
    """What measures a cell where no engine was started: never called."""
    raise AssertionError(f"no engine was started for {cell.cell_id}")


def _wait(seconds: float, stop: Stop) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and stop.asked is None:
        time.sleep(POLL_S)
