"""The built-in engine's process against the clock: tokens are progress, silence is a hang, and what a failed start
leaves."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ddbench.records import Arm, Cell
from runners.base import CellJob, EngineFailure, ModelFiles, Prompt, ServerSpec
from runners.reference import ReferenceRunner

ARM = Arm("reference", "1", "autoregressive", None, None, None, False, None, "m", "t", None, None, None, "local", {})
CELL = Cell(ARM, "w", "h", 1, 1, 100, 0.0, 1.0, 0, 0, 50, 0)  # of minutes
PROMPTS = tuple(Prompt(f"p{i}", "d", "c", (f"def f{i}(x):",)) for i in range(6))
SPEC = ServerSpec(
    ModelFiles("none", random_seed=0), "cpu", "float32", 1, "raw", None, 512, True, PROMPTS, PROMPTS[:1], 100, 60.0
)


@pytest.fixture(scope="module")
def runner() -> Iterator[ReferenceRunner]:
    made = ReferenceRunner(SPEC)
    yield made
    made.stop()


def job(folder: Path) -> CellJob:
    (folder / "cell").mkdir()
    return CellJob(CELL, folder / "cell", 2)


def test_the_log_of_a_failed_start_stays_until_one_succeeds(
    runner: ReferenceRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runner.spec = replace(SPEC, start_s=0.01)
    with pytest.raises(EngineFailure, match=r"was not ready in 0\.01 s.*\(see .*ddbench-.*\.log\)") as failure:
        runner.start()
    (log,) = tmp_path.glob("ddbench-*.log")
    assert str(log) in str(failure.value)
    runner.spec = SPEC
    runner.start()
    assert not log.exists()


def test_a_slow_cell_is_no_hang_and_fails_for_good(runner: ReferenceRunner, tmp_path: Path) -> None:
    """It goes on for longer than a stall may last, since tokens come, until its own time is over."""
    runner.spec = replace(SPEC, stall_s=2.0, timeout_s=3.0)
    outcome = runner.run_cell(job(tmp_path), lambda *_: None)
    assert (outcome.status, outcome.kind) == ("failed", None)
    assert outcome.reason == "the cell was not done within 3 s (engine.timeout_s), though tokens came"


def test_silence_is_a_hang_long_before_the_time_is_over(runner: ReferenceRunner, tmp_path: Path) -> None:
    runner.spec = SPEC
    runner.start()
    runner.spec = replace(SPEC, stall_s=1.2)
    engine = psutil.Process(runner._link._process.pid)  # type: ignore[union-attr]
    with pytest.raises(EngineFailure, match=r"the engine hangs: no token for 1\.2 s") as hang:
        runner.run_cell(job(tmp_path), lambda *_: engine.suspend())
    assert hang.value.kind == "hang"
    assert not engine.is_running()
