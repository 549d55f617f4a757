"""A GPU that another engine holds: it is waited for, under the name that is the same for all who see it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sweeps import HERE, wait_for

sys.path.append(str(Path(__file__).parents[1] / "runners" / "hosts"))

from ssh_servers import SshServer

from ddbench.errors import ConfigError
from ddbench.records import Arm, Cell
from experiments import attempts, starting
from experiments.attempts import repeated
from experiments.interrupt import Stop
from experiments.settings import FaultSettings
from experiments.starting import started
from experiments.store import RunFolder
from runners import keeper
from runners.base import CellOutcome, EngineFailure, ModelFiles, ServerSpec
from runners.gpu_locks import names_of
from runners.hosts import LocalHost, open_host
from runners.hosts.config import LOCAL
from runners.reference import ReferenceRunner
from runners.server import Server, ServerCommand

ARM = Arm("reference", "1", "autoregressive", None, None, None, False, None, "m", "t", None, None, None, "local", {})
CELL = Cell(ARM, "w", "h", 1, 1, 6, 0.0, 1.0, 0, 0, 1, 0)
NUMBER = 10_000 + os.getpid()  # of a GPU that no machine has: its lock alone is real
NOBODY = 65534  # a user of every machine


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


@pytest.fixture
def held() -> Iterator[subprocess.Popen[bytes]]:
    """A program that holds the GPU, started as an engine of this machine is."""
    command = [sys.executable, "-I", str(keeper.__file__), "0.1", str(os.getpid()), "--lock", f"gpu-{NUMBER}", "--"]
    with subprocess.Popen([*command, "sleep", "60"]) as process:
        wait_for(lambda: bool(psutil.Process(process.pid).children()))
        yield process
        process.terminate()


def test_a_lock_is_one_and_the_same_whoever_asks_and_by_whatever_way(
    held: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = f"gpu-{NUMBER}"
    ending = [sys.executable, "-I", str(keeper.__file__), "0.1", str(os.getpid()), "--lock", lock, "--", "true"]
    as_another = {"user": NOBODY} if os.getuid() == 0 else {}
    for more in ({"env": {**os.environ, "TMPDIR": str(tmp_path)}}, as_another):
        assert subprocess.run(ending, capture_output=True, check=False, **more).returncode == keeper.LOCKED
    with SshServer(tmp_path / "sshd") as ssh, open_host(ssh.config(workdir=str(tmp_path / "work"))) as there:
        refused = there.start(["true"], log=tmp_path / "log", locks=[lock])
        assert refused.wait(10) == keeper.LOCKED
        assert f"{lock} is in use by process {held.pid}" in (tmp_path / "log").read_text()
    held.terminate()
    held.wait()
    assert subprocess.run(ending, capture_output=True, check=False, **as_another).returncode == 0


def test_the_built_in_engine_waits_too(
    held: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its first start as at any other; the GPU that it then gets is none that torch has."""
    monkeypatch.setattr(starting, "BUSY_S", 0.1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(NUMBER))
    files = ModelFiles("none", None, None, random_seed=0)
    spec = ServerSpec(files, "cuda", "float32", 1, "raw", None, 64, False, (), (), 4, 60.0, host=LOCAL)
    runner, failures = ReferenceRunner(spec), []

    class Watched:
        """As it is; what holds the GPU ends after the first refusal."""

        def start(self) -> dict[str, Any]:
            try:
                return runner.start()
            except EngineFailure as failure:
                failures.append(failure)
                held.terminate()
                held.wait()
                raise

    with pytest.raises(ConfigError, match=r"engine\.device='cuda'"):
        started(Watched(), FaultSettings(retries=0))  # type: ignore[arg-type]
    (refused,) = failures
    assert refused.kind == "busy"
    assert f"the engine got no GPU (host.share_gpus): gpu-{NUMBER} is in use by process {held.pid}" in str(refused)
    assert capsys.readouterr().err.count("waiting for it, 12 h 00 min at most") == 1
