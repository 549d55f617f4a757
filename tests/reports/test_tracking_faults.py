"""What goes wrong in W&B is one warning, and nothing else."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from family import living

from reports.tracking import Recorder, WandbSettings

pytest.importorskip("wandb")

RAISES = "raise RuntimeError('the server said no')"
HANGS = "import time; time.sleep(600)"
DIES = "import os; os._exit(9)"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "synthetic" / "run"
    shutil.copytree(small_run, folder)
    return folder


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a package ``wandb`` of ours before the real one, for the process that logs."""

    def put(init: str) -> None:
        package = tmp_path / "stand_in" / "wandb"
        package.mkdir(parents=True)
        settings = "class Settings:\n    model_fields = {}\n    def __init__(self, **_): pass\n"
        (package / "__init__.py").write_text(f"{settings}\ndef init(**_):\n    {init}\n\ndef teardown(): pass\n")
        monkeypatch.setenv("PYTHONPATH", str(package.parent))

    return put


def use(run: Path, settings: WandbSettings, report: bool = True) -> bool:
    """A sweep's calls; returns what the report's said."""
    with Recorder(settings, run) as recorder:
        recorder.start()
        recorder.ready()
        for path in sorted((run / "cells").iterdir())[:5]:
            recorder.cell(path.name)
        return report and recorder.report()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("init", "reason"),
    [(RAISES, "the server said no"), (HANGS, "no answer in 0.5 s"), (DIES, "ended unexpectedly")],
    ids=["refuses", "hangs", "dies"],
)
def test_one_warning_for_all_cells(
    init: str,
    reason: str,
    run: Path,
    stand_in: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand_in(init)
    clock = time.monotonic()
    assert not use(run, WandbSettings(timeout_s=0.5), report=init == RAISES)
    assert time.monotonic() - clock < 60
    (warning,) = warnings(caplog)
    assert reason in warning
    assert f"experiment=report run={run} tracking=wandb" in warning
    left = [child for child in living() if "reports.tracking.worker" in " ".join(child.cmdline())]
    assert not left


def test_a_folder_that_cannot_be_written(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    (run / "wandb").write_text("in the way")
    assert not use(run, WandbSettings(), report=False)
    (warning,) = warnings(caplog)
    assert "FileExistsError" in warning or "NotADirectoryError" in warning


@pytest.mark.parametrize("size", [7, 8])
def test_an_offline_run_that_was_cut_off_is_removed_if_empty(
    run: Path, stand_in: Callable[[str], None], size: int
) -> None:
    cell_id = min(path.name for path in (run / "cells").iterdir())
    earlier, made, other = (run / "wandb" / f"offline-run-{end}" for end in (f"1-{cell_id}", f"2-{cell_id}", "2-other"))
    for folder in (earlier, other):
        folder.mkdir(parents=True)
        (folder / "run-x.wandb").write_bytes(b"x" * 7)
    (run / "wandb" / "latest-run").symlink_to(made.name)
    text = f"import pathlib; p = pathlib.Path({str(made)!r}); p.mkdir(); (p / 'run-x.wandb').write_bytes(b'x' * {size})"
    stand_in(f"{text}; raise RuntimeError('cut off')")
    assert not use(run, WandbSettings(), report=False)
    kept = {earlier.name, other.name} | ({made.name, "latest-run"} if size > 7 else set())
    assert {path.name for path in (run / "wandb").iterdir()} == kept


def test_without_the_package(run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # what an import finds where there is none
    assert not use(run, WandbSettings())
    (warning,) = warnings(caplog)
    assert "the package is not installed (pip install 'ddbench[wandb]')" in warning
    assert not (run / "wandb").exists()


def test_it_ends_with_its_parent(run: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from reports.tracking import Recorder, WandbSettings;"
        "r = Recorder(WandbSettings(), Path(sys.argv[1])); r.start(); r.ready(); print(r._process.pid, flush=True);"
        "time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(run)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    child = psutil.Process(json.loads(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 20
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "it outlives the sweep"
        time.sleep(0.05)
