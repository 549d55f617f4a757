"""An engine server as a child process on loopback: its start, its death and its end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from runners import engine_log, keeper
from runners.base import EngineFailure
from runners.gpu_memory import MemoryGate
from runners.ports import LOOPBACK, claim_port

POLL_S = 0.1
HTTP_TIMEOUT_S = 5.0
KEEPER_MARGIN_S = 5.0  # what the keeper may need beyond the grace period
KILL_TIMEOUT_S = 10.0
RETURN_TIMEOUT_S = 60.0  # for a GPU's memory to come back


@dataclass(frozen=True)
class ServerCommand:
    """How to start one engine server. ``{port}`` in an argument becomes the port.

    ``environment`` is laid over this process's own, and a value of None takes a variable away. ``port`` None: any
    free one. ``gpus`` names the GPUs (NVML index or UUID, see :func:`runners.gpu_memory.visible_gpus`) whose memory
    must be back after the end. ``name`` is for messages.
    """

    argv: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    port: int | None = None
    health: str = "/health"
    start_timeout_s: float = 1800.0
    grace_s: float = 15.0
    gpus: Sequence[int | str] = ()
    name: str = "the engine"


@dataclass(frozen=True)
class Ending:
    """How a server ended: its exit status (negative: a signal), and what did not come back in time, None if all did."""

    exit_code: int | None
    seconds: float
    problem: str | None = None


class Server:
    """A running engine server. Made by :meth:`start`, which returns when it answers; ended by :meth:`stop`.

    It runs in a session and process group of its own under :mod:`runners.keeper`, so that none of its processes
    outlives it or this process, however this process ends. Standard output and standard error go to ``log``.

        with Server.start(command, log) as server:
            mark = server.log_mark()
            ...
            server.copy_log(folder / "server.log", mark)
    """

    def __init__(self, command: ServerCommand, log: Path, port: int) -> None:
        """Use :meth:`start`."""
        self.command, self.log, self.port = command, log, port
        self.base_url = f"http://{LOOPBACK}:{port}"
        self.ready_s: float | None = None  # seconds from the start to the first answer
        self._ending: Ending | None = None
        self._gate = MemoryGate.before(command.gpus)
        self._log_start = log.stat().st_size if log.exists() else 0
        argv = [argument.replace("{port}", str(port)) for argument in command.argv]
        wrapper = [sys.executable, "-I", str(Path(keeper.__file__)), str(command.grace_s), str(os.getpid())]
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [*wrapper, *argv],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=_environment(command.environment),
                start_new_session=True,
            )
        self._root = psutil.Process(self._process.pid)

    @classmethod
    def start(cls, command: ServerCommand, log: Path) -> Server:
        """Starts the server and waits until ``GET health`` answers 200. The log is appended to.

        Raises:
            ConfigError: ``engine.port`` is taken.
            EngineFailure: it died before it answered, or did not answer in time; it has been ended.
        """
        server = cls(command, log, claim_port(command.port))
        try:
            server._wait_until_ready()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def pid(self) -> int:
        """Root of the server's process tree (its keeper), and the number of its process group."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the server's main process runs. Says nothing about its health."""
        return self._process.poll() is None

    def check(self, patience_s: float = 0.0) -> None:
        """Raises EngineFailure if the server has died, with how, the cause as the log tells it, and the log's path.

        ``patience_s``: how long it may take to die, for a server whose requests have just failed; returns after that.
        """
        if patience_s > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        if not self.alive():
            raise EngineFailure(self._obituary(f"{self.command.name} died ({describe_exit(self._process.returncode)})"))

    def healthy(self, timeout_s: float = HTTP_TIMEOUT_S) -> bool:
        """Whether ``GET health`` answers 200 now."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=timeout_s)
        try:
            connection.request("GET", self.command.health)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def log_mark(self) -> int:
        """The log's present size in bytes: where the part of the next cell begins."""
        return self.log.stat().st_size

    def log_part(self, start: int = 0, end: int | None = None) -> str:
        """The log from byte ``start`` to ``end`` (None: all there is)."""
        return engine_log.read_part(self.log, start, end).decode(errors="replace")

    def copy_log(self, target: Path, start: int = 0, end: int | None = None) -> None:
        """Writes a part of the log to a file of its own, for example the folder of a cell."""
        target.write_bytes(engine_log.read_part(self.log, start, end))

    def log_tail(self, lines: int = 20) -> str:
        """The last ``lines`` lines that this server wrote."""
        return "\n".join(engine_log.read_tail(self.log, self._log_start).splitlines()[-lines:])

    def stop(self) -> Ending:
        """Ends every process of the server and waits until their memory is back. Safe to call twice.

        SIGTERM to all, SIGKILL after the grace period. On a GPU it then waits, for a minute at most, until the memory
        in use is down to what it was before the start; what is missing is named in the result.
        """
        if self._ending is not None:
            return self._ending
        began = time.monotonic()
        tree = self._tree()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.command.grace_s + KEEPER_MARGIN_S)
        problem = self._bury(tree) or self._gate.wait(RETURN_TIMEOUT_S)
        self._ending = Ending(self._process.returncode, time.monotonic() - began, problem)
        return self._ending

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        began = time.monotonic()
        while not self.healthy():
            self.check()
            if time.monotonic() - began > self.command.start_timeout_s:
                waited = (
                    f"{self.command.name} did not answer {self.command.health} in {self.command.start_timeout_s:g} s"
                )
                raise EngineFailure(self._obituary(waited))
            time.sleep(POLL_S)
        self.check()
        if not self._listens():
            raise EngineFailure(
                f"another process answers on port {self.port}, not {self.command.name} (see {self.log})"
            )
        self.ready_s = time.monotonic() - began

    def _listens(self) -> bool:
        """Whether the port belongs to this server, not to one that took it between the choice and the start."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.port == self.port:
                        return True
        return False

    def _tree(self) -> list[psutil.Process]:
        """The server's processes at present, the keeper first."""
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _bury(self, tree: list[psutil.Process]) -> str | None:
        """Kills what is left of tree and group, as when the keeper was itself killed; what stays, in words."""
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while True:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            left = [process for process in tree if _runs(process)]
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.poll()
            if not left:
                return None
            if time.monotonic() > deadline:
                return f"processes {', '.join(str(process.pid) for process in left)} cannot be killed"
            time.sleep(POLL_S)

    def _obituary(self, what: str) -> str:
        said = engine_log.cause(engine_log.read_tail(self.log, self._log_start))
        return f"{what}: {said or 'it wrote nothing'} (see {self.log})"


def describe_exit(code: int) -> str:
    """An exit status in words: ``exit code 1``, or ``signal 9, SIGKILL`` for -9."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}
