"""An engine server on the loopback of a host, this machine or another: its start, its death and its end."""

from __future__ import annotations

import contextlib
import http.client
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runners import engine_log
from runners.base import EngineFailure
from runners.gpu_locks import lock_names
from runners.gpu_memory import MemoryGate
from runners.hosts import Host, HostFailure, LocalHost
from runners.keeper import LOCKED
from runners.ports import LOOPBACK

POLL_S = 0.1
HTTP_TIMEOUT_S = 5.0
RETURN_TIMEOUT_S = 60.0  # for a GPU's memory to come back


@dataclass(frozen=True)
class ServerCommand:
    """How to start one engine server. ``{port}`` in an argument becomes the port.

    ``environment`` is laid over that of this process, or of the host's user, and a value of None takes a variable away.
    ``port`` None: any free one. ``gpus`` names the GPUs (NVML index or UUID, see
    :func:`runners.gpu_memory.visible_gpus`) whose memory must be back after the end. ``name`` is for messages.
    ``host``: where it runs; paths in ``argv`` are the host's.
    """

    argv: Sequence[str]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    port: int | None = None
    health: str = "/health"
    start_timeout_s: float = 1800.0
    grace_s: float = 15.0
    gpus: Sequence[int | str] = ()
    name: str = "the engine"
    host: Host = field(default_factory=LocalHost)


@dataclass(frozen=True)
class Ending:
    """How a server ended: its exit status (negative: a signal), and what did not come back in time, None if all did."""

    exit_code: int | None
    seconds: float
    problem: str | None = None


class Server:
    """A running engine server. Made by :meth:`start`, which returns when it answers; ended by :meth:`stop`.

    It runs in a session and process group of its own under :mod:`runners.keeper`, so that none of its processes
    outlives it or this process, however this process ends. Standard output and standard error go to ``log``, here.
    ``base_url`` is where it answers, seen from here; ``port`` is its own, on its host. Its GPUs are locked there as
    long as it runs, unless ``host.share_gpus`` says otherwise: another engine that wants one of them does not start.

        with Server.start(command, log) as server:
            mark = server.log_mark()
            ...
            server.copy_log(folder / "server.log", mark)
    """

    def __init__(self, command: ServerCommand, log: Path, port: int) -> None:
        """Use :meth:`start`."""
        self.command, self.log, self.port = command, log, port
        self.ready_s: float | None = None  # seconds from the start to the first answer
        self._ending: Ending | None = None
        host = command.host
        self._gate = MemoryGate.before(command.gpus, host.used_gib)
        self._log_start = log.stat().st_size if log.exists() else 0
        argv = [argument.replace("{port}", str(port)) for argument in command.argv]
        locks = lock_names(host, command.gpus)
        self._process = host.start(argv, env=command.environment, log=log, grace_s=command.grace_s, locks=locks)
        self._tunnel = contextlib.ExitStack()
        try:
            self._door = self._tunnel.enter_context(host.forward(port))  # the port that leads to it, here
        except BaseException:
            self._process.stop()
            raise
        self.base_url = f"http://{LOOPBACK}:{self._door}"

    @classmethod
    def start(cls, command: ServerCommand, log: Path) -> Server:
        """Starts the server and waits until ``GET health`` answers 200. The log is appended to.

        Raises:
            ConfigError: ``engine.port`` is taken.
            EngineFailure: it died before it answered, or did not answer in time; it has been ended.
        """
        server = cls(command, log, command.host.claim_port(command.port))
        try:
            server._wait_until_ready()
        except BaseException:
            server.stop()
            raise
        return server

    @property
    def pid(self) -> int:
        """Root of the server's process tree (its keeper) on its host, and the number of its process group."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the server's main process runs. Says nothing about its health."""
        return self._process.poll() is None

    def check(self, patience_s: float = 0.0) -> None:
        """Raises EngineFailure if the server has died, with how, the cause as the log tells it, and the log's path.

        ``patience_s``: how long it may take to die, for a server whose requests have just failed; returns after that.
        """
        code = self._process.wait(patience_s) if patience_s > 0 else self._process.poll()
        if self._process.lost is not None:
            raise HostFailure(self._obituary(f"{self.command.name} was lost: {self._process.lost}"))
        if code == LOCKED:
            raise EngineFailure(self._obituary(f"{self.command.name} got no GPU (host.share_gpus)"), "busy")
        if code is not None:
            raise EngineFailure(self._obituary(f"{self.command.name} died ({describe_exit(code)})"))

    def healthy(self, timeout_s: float = HTTP_TIMEOUT_S) -> bool:
        """Whether ``GET health`` answers 200 now."""
        connection = http.client.HTTPConnection(LOOPBACK, self._door, timeout=timeout_s)
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
        problem = self._process.stop()
        self._tunnel.close()
        try:
            problem = problem or self._gate.wait(RETURN_TIMEOUT_S)
        except HostFailure as failure:
            problem = f"it is not known whether the memory has come back ({failure})"
        self._ending = Ending(self._process.poll(), time.monotonic() - began, problem)
        return self._ending

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        began = time.monotonic()
        while not self.healthy():
            self._check_starting()
            if time.monotonic() - began > self.command.start_timeout_s:
                waited = (
                    f"{self.command.name} did not answer {self.command.health} in {self.command.start_timeout_s:g} s"
                )
                last = engine_log.last_lines(engine_log.read_tail(self.log, self._log_start))
                raise EngineFailure(f"{self._obituary(waited)}; its last lines: {last}", "start")
            time.sleep(POLL_S)
        self.check()
        if not self._process.listens(self.port):
            said = f"another process answers on port {self.port}, not {self.command.name} (see {self.log})"
            raise EngineFailure(said, "start")
        self.ready_s = time.monotonic() - began

    def _check_starting(self) -> None:
        """Like :meth:`check`, of a server that has not answered yet."""
        try:
            self.check()
        except HostFailure:
            raise
        except EngineFailure as failure:
            raise EngineFailure(str(failure), "busy" if failure.kind == "busy" else "start") from None

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
