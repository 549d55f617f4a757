"""The built-in PyTorch engine, in a process of its own: a crash or a hang of one cell does not end the sweep."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from runners.base import Answers, CellJob, CellOutcome, EngineFailure, NewPrompts, Prompt, ServerSpec
from runners.machine import version
from runners.worker import serve

START_TIMEOUT_S = 1800.0  # a large model may come over the network


def engine_version() -> str:
    """ddbench, torch and transformers: what decides how the reference engine computes."""
    return " ".join(f"{package} {version(package)}" for package in ("ddbench", "torch", "transformers"))


def unsupported(*, host_kind: str, attention: str) -> str | None:
    """Why this engine cannot run a model on a host, whatever the strategy; None if it can."""
    if host_kind != "local":
        return "the reference engine runs on the local host only"
    if attention != "full":
        return (
            "the reference engine runs full attention only: siblings of a tree would share a hybrid's recurrent state"
        )
    return None


class ReferenceRunner:
    """Drives :mod:`runners.worker` in a child process; see :class:`runners.base.Runner`.

    What the engine prints while it starts goes to a temporary file, which a failed start leaves behind.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._log: Path | None = None
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def start(self) -> dict[str, Any]:
        self.stop()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        descriptor, log = tempfile.mkstemp(prefix="ddbench-", suffix=".log")
        os.close(descriptor)
        self._log = Path(log)
        self._process = context.Process(target=serve, args=(theirs, self.spec, log), name="ddbench-reference")
        self._process.start()
        theirs.close()
        kind, *rest = self._receive(START_TIMEOUT_S)
        if kind == "ready":
            facts: dict[str, Any] = rest[0]
            return facts
        if kind == "refused":
            self.stop()
            raise ConfigError(*rest)
        kept, self._log = self._log, None
        self.stop()
        with kept.open("a", encoding="utf-8") as stream:
            stream.write(rest[0])
        raise EngineFailure(f"the engine did not start: {rest[0].strip().splitlines()[-1]} (see {kept})")

    def run_cell(self, job: CellJob, on_progress: Callable[[int, int], None]) -> CellOutcome:
        if self._connection is None:
            self.start()
        assert self._connection is not None
        deadline = time.monotonic() + self.spec.timeout_s
        self._connection.send(job)
        while True:
            kind, *rest = self._receive(deadline - time.monotonic())
            if kind == "done":
                outcome: CellOutcome = rest[0]
                return outcome
            on_progress(rest[0], rest[1])

    def ask(self, prompts: tuple[Prompt, ...]) -> dict[str, Any]:
        assert self._connection is not None
        self._connection.send(NewPrompts(prompts))
        kind, *rest = self._receive(self.spec.timeout_s)
        if kind == "refused":
            raise ConfigError(*rest)
        self.spec = replace(self.spec, prompts=prompts)
        facts: dict[str, Any] = rest[0]
        return facts

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        assert self._connection is not None
        self._connection.send(Answers(tuple(map(tuple, token_ids))))
        _, *rest = self._receive(self.spec.timeout_s)
        texts: list[str] = rest[0]
        return texts

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            _end(self._process)
            self._process = None
        if self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None

    def _receive(self, timeout_s: float) -> tuple[Any, ...]:
        """The next message. Raises EngineFailure when the process is gone or silent for too long."""
        assert self._connection is not None
        assert self._process is not None
        try:
            if self._connection.poll(max(timeout_s, 0.0)):
                message: tuple[Any, ...] = self._connection.recv()
                return message
        except (EOFError, OSError):
            self._process.join(10)
            code = self._process.exitcode
            self.stop()
            died = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            raise EngineFailure(f"the engine process died ({died})") from None
        self.stop()
        raise EngineFailure("no answer from the engine in time (see engine.timeout_s)")


def _end(process: SpawnProcess) -> None:
    """Ends a child that no longer has a pipe, gently and then with its whole process group."""
    process.join(2)
    if process.is_alive() and process.pid is not None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # not yet the leader of a group of its own
            process.kill()
        process.join(10)
    process.close()
