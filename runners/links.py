"""How the process of the reference engine is reached: it is a child of this one, or it runs on another host."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, Protocol

from runners.base import CellJob, EngineFailure, ServerSpec
from runners.worker import serve


class Link(Protocol):
    """A line to :func:`runners.worker.serve`. Any method may raise EngineFailure where the host is lost."""

    def send(self, message: object) -> None: ...

    def receive(self, timeout_s: float) -> tuple[Any, ...] | None:
        """The next message, None if none comes in time. Raises EOFError or OSError when the process is gone."""

    def job(self, job: CellJob) -> CellJob:
        """A cell to be measured as the process sees it, whose folders may be others."""

    def fetch(self, job: CellJob) -> None:
        """Brings what was written for a cell into its folder here."""

    def death(self) -> EngineFailure:
        """How the process ended, which has closed its end of the line."""

    def end(self) -> None:
        """Ends the process. Safe to call twice."""


def spawn_context() -> SpawnContext:
    """For children that start anew, whatever started this process.

    A child takes up its parent's default start method by name. In a worker of joblib that is ``loky``, which a child
    does not know.
    """
    known = ("fork", "forkserver", "spawn")
    if multiprocessing.get_start_method(allow_none=True) not in (None, *known):
        multiprocessing.set_start_method("spawn", force=True)
    return multiprocessing.get_context("spawn")


class ChildLink:
    """See :class:`Link`. What the child prints before its first cell goes to ``log``."""

    def __init__(self, spec: ServerSpec, log: Path) -> None:
        context = spawn_context()
        self._connection, theirs = context.Pipe()
        self._process: SpawnProcess | None = context.Process(
            target=serve, args=(theirs, spec, str(log)), name="ddbench-reference"
        )
        self._process.start()
        theirs.close()

    def send(self, message: object) -> None:
        self._connection.send(message)

    def receive(self, timeout_s: float) -> tuple[Any, ...] | None:
        if not self._connection.poll(max(timeout_s, 0.0)):
            return None
        message: tuple[Any, ...] = self._connection.recv()
        return message

    def job(self, job: CellJob) -> CellJob:
        return job

    def fetch(self, job: CellJob) -> None:
        return

    def death(self) -> EngineFailure:
        assert self._process is not None
        self._process.join(10)
        code = self._process.exitcode
        died = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return EngineFailure(f"the engine process died ({died})")

    def end(self) -> None:
        self._connection.close()
        process, self._process = self._process, None
        if process is None:
            return
        process.join(2)
        if process.is_alive() and process.pid is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # not yet the leader of a group of its own
                process.kill()
            process.join(10)
        process.close()
