"""A GPU that another engine holds: it is waited for, under the name that is the same for all who see it."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from sweeps import HERE

from ddbench.records import Arm, Cell
from experiments import attempts
from experiments.attempts import repeated
from experiments.interrupt import Stop
from experiments.settings import FaultSettings
from experiments.store import RunFolder
from runners.base import CellOutcome, EngineFailure
from runners.gpu_locks import names_of
from runners.hosts import LocalHost
from runners.server import Server, ServerCommand

ARM = Arm("reference", "1", "autoregressive", None, None, None, False, None, "m", "t", None, None, None, "local", {})
CELL = Cell(ARM, "w", "h", 1, 1, 6, 0.0, 1.0, 0, 0, 1, 0)
NUMBER = 4711  # of a GPU that no machine has: its lock alone is real


def server(folder: Path, name: str) -> Server:
    argv = [sys.executable, str(HERE / "standin_server.py"), "{port}"]
    command = ServerCommand(argv, start_timeout_s=20.0, grace_s=0.5, gpus=(NUMBER,), host=LocalHost())
    return Server.start(command, folder / f"{name}.log")


def test_a_gpu_is_named_by_its_uuid() -> None:
    cards = [{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": None}]
    assert names_of((0, 1, 2, "GPU-b"), cards) == ["gpu-GPU-a", "gpu-1", "gpu-2", "gpu-GPU-b"]


def test_two_engines_never_share_one_and_the_second_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "BUSY_S", 0.1)
    first = server(tmp_path, "first")
    with pytest.raises(EngineFailure, match="got no GPU") as refused:
        server(tmp_path, "second")
    assert refused.value.kind == "busy"
    tries = 0

    def measure(_: Cell, place: Path) -> CellOutcome:
        nonlocal tries
        tries += 1
        try:
            with server(place, "server"):
                return CellOutcome("ok", None)
        except EngineFailure as failure:
            return CellOutcome("failed", str(failure), kind=failure.kind)

    folder = RunFolder(tmp_path / "run")
    _, outcome, _ = repeated(CELL, folder, measure, FaultSettings(gpu_wait_s=0), Stop())
    assert (outcome.status, outcome.kind, tries) == ("failed", "busy", 1)
    ending = threading.Thread(target=lambda: (time.sleep(0.8), first.stop()))
    ending.start()
    _, outcome, before = repeated(CELL, folder, measure, FaultSettings(retries=0), Stop())
    ending.join()
    assert (outcome.status, before) == ("ok", ())
    assert tries > 2
