"""Sweeps of the stand-in engine as real processes, and what must be the same in all of them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_numbers = itertools.count()
CELLS = 6  # autoregressive and dflash at three batch sizes
RAW = ["prompt_id", "output_token_ids", "output_tokens", "rounds", "drafted", "accepted", "accept_histogram"]


class Process:
    """A sweep that runs, or ran: its number, and its streams so far."""

    def __init__(self, pid: int, base: Path) -> None:
        self.pid, self._base = pid, base
        self._psutil = psutil.Process(pid)

    def poll(self) -> int | None:
        code = self._base.with_suffix(".code")
        return int(code.read_text()) if code.exists() else None

    @property
    def errors(self) -> str:
        return self._base.with_suffix(".err").read_text()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def end(self, timeout_s: float = 120.0) -> tuple[int, dict[str, Any], str]:
        """Waits for the end: exit status, summary and standard error."""
        wait_for(lambda: self.poll() is not None, timeout_s)
        out = self._base.with_suffix(".out").read_text()
        return self.poll() or 0, json.loads(out.splitlines()[-1]) if out.strip() else {}, self.errors

    def family(self) -> list[psutil.Process]:
        """All its descendants: keeper and engine."""
        try:
            return self._psutil.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def engines(self) -> list[psutil.Process]:
        """The engine, once it is itself and no longer on its way to be."""
        return [each for each in self.family() if is_engine(each)]

    def measures(self, folder: Path) -> bool:
        """Whether it has an engine and is at a cell."""
        return any((folder / ".running").glob("*/*")) and len(self.engines()) == 1


def is_engine(process: psutil.Process) -> bool:
    try:
        line = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return len(line) > 1 and line[1].endswith("standin_server.py")


@dataclass(frozen=True)
class Sweeps:
    """``python -m ddbench`` on the stand-in engine, all runs below one folder; started by ``forge.py``."""

    folder: Path
    forge: subprocess.Popen[str]

    def arguments(self, run_id: str, *overrides: str) -> list[str]:
        return [
            "experiment=smoke",
            "_target_=standin.run",
            "model=tiny_untrained",
            "tracking=none",
            "report.figures=false",
            "report.build=false",
            "workload=file",
            f"workload.path={self.folder / 'prompts.jsonl'}",
            f"workload.warmup_path={self.folder / 'warmup.jsonl'}",
            f"output_dir={self.folder / 'out'}",
            f"run_id={run_id}",
            "load.max_new_tokens=24",
            "sweep.strategy=[autoregressive,dflash]",
            "sweep.depth=[3]",
            "sweep.batch_size=[1,2,3]",
            "faults.retry_wait_s=0",
            *overrides,
        ]

    def start(self, run_id: str, *overrides: str) -> Process:
        base = self.folder / f"process-{next(_numbers)}"
        names = {kind: str(base.with_suffix(f".{kind}")) for kind in ("out", "err", "code")}
        job = {"arguments": self.arguments(run_id, *overrides), **names}
        assert self.forge.stdin is not None
        assert self.forge.stdout is not None
        self.forge.stdin.write(json.dumps(job) + "\n")
        self.forge.stdin.flush()
        return Process(int(self.forge.stdout.readline()), base)

    def run(self, run_id: str, *overrides: str) -> tuple[int, dict[str, Any], str]:
        """Exit status, summary and standard error of a whole run."""
        return self.start(run_id, *overrides).end()

    def execute(self, run_id: str, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The same as a command of its own, in an environment of its own."""
        return subprocess.run(
            [sys.executable, "-m", "ddbench", *self.arguments(run_id, *overrides)],
            cwd=self.folder,
            env={**environment_of(), **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def path(self, run_id: str) -> Path:
        return self.folder / "out" / "smoke" / run_id

    def content(self, run_id: str) -> dict[str, Any]:
        """By cell, its status, and tokens and counts of its requests."""
        return {path.name: cell_content(path) for path in (self.path(run_id) / "cells").iterdir()}


def cell_content(path: Path) -> tuple[str, list[dict[str, Any]]]:
    status = json.loads((path / "status.json").read_text())["status"]
    return status, pq.read_table(path / "requests.parquet", columns=RAW).to_pylist()


@contextmanager
def forge() -> Iterator[subprocess.Popen[str]]:
    """A process that starts sweeps."""
    command = [sys.executable, str(HERE / "forge.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment_of(), stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def environment_of() -> dict[str, str]:
    paths = f"{ROOT}{os.pathsep}{HERE}"
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def finished(folder: Path) -> int:
    return len(list((folder / "cells").glob("*/status.json")))


def statuses(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "cells").glob("*/status.json"))]


def wait_for(what: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.002)


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def gone(*processes: psutil.Process) -> None:
    wait_for(lambda: not any(map(lives, processes)), 10)


def ports(processes: list[psutil.Process]) -> list[int]:
    """What they listen on."""
    found = []
    for each in processes:
        try:
            connections = each.net_connections("inet")
        except psutil.Error:
            continue
        found += [one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN]
    return found
