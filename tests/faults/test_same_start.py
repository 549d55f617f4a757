"""An engine that does not start for any arm, always for the same reason, is not tried twice for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddbench.records import Arm, Cell
from experiments.attempts import repeated
from experiments.interrupt import Stop
from experiments.settings import FaultSettings
from experiments.store import RunFolder
from runners.base import CellOutcome, FailureKind

ARM = Arm("engine", "1", "ddtree", None, 3, 4, False, None, "m", "t", None, "d", None, "local", {})
CELL = Cell(ARM, "w", "h", 1, 1, 6, 0.0, 1.0, 0, 0, 1, 0)
NO_KERNEL = "the server died: RuntimeError: failed to dispatch data type Float"
NO_PORT = "the server did not come up in 5 s"
FAULTS = FaultSettings(retries=1, retry_wait_s=0)


def tries(folder: Path, reasons: list[str], kind: FailureKind = "start") -> list[int]:
    """How often each of some cells is tried, whose tries fail for ``reasons``, one after another."""
    left, lasting, found = list(reasons), set[str](), []
    for seed in range(9):
        if not left:
            break
        before = len(left)

        def measure(_: Cell, __: Path) -> CellOutcome:
            return CellOutcome("failed", left.pop(0), kind=kind)

        _, outcome, attempts = repeated(
            replace(CELL, seed=seed), RunFolder(folder), measure, FAULTS, Stop(), lasting=lasting
        )
        assert outcome.status == "failed"
        assert len(attempts) + 1 == before - len(left)
        found.append(before - len(left))
    return found


def test_a_start_that_fails_in_a_known_way_is_not_tried_again(tmp_path: Path) -> None:
    assert tries(tmp_path, [NO_KERNEL] * 4) == [2, 1, 1]


def test_what_failed_once_or_otherwise_is(tmp_path: Path) -> None:
    assert tries(tmp_path / "a", [NO_PORT, NO_KERNEL, NO_PORT, NO_KERNEL]) == [2, 2]
    assert tries(tmp_path / "b", [NO_KERNEL, NO_KERNEL, NO_PORT, NO_KERNEL]) == [2, 2]
    assert tries(tmp_path / "c", [NO_KERNEL] * 4, kind="died") == [2, 2]
