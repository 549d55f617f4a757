"""What ddbench asks of a machine that engines run on, whether it is this one or one behind ssh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from runners.base import EngineFailure, FailureKind
from runners.gpu_memory import Gpu
from runners.hosts.config import HostConfig

RUN_TIMEOUT_S = 60.0


class HostFailure(EngineFailure):
    """The host cannot be reached, was lost, or does not do what any host can: no fault of the arm that ran there."""

    kind: FailureKind = "lost"


@dataclass(frozen=True)
class Completed:
    """A command that has ended: ``rc`` 0 to 255, or negative for the signal that ended it; what it printed."""

    rc: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.rc == 0

    @property
    def said(self) -> str:
        """The last line it printed that is not empty, of its errors if there are any; for a message."""
        lines = [line.strip() for text in (self.stderr, self.stdout) for line in reversed(text.splitlines())]
        return next((line for line in lines if line), f"exit code {self.rc}, and it printed nothing")


class Process(Protocol):
    """A program that was started on a host, with all its descendants.

    ``pid`` is, on the host, the root of their tree and the number of their process group.
    """

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """None while it runs; then its exit status, negative for a signal. Never raises."""

    def wait(self, timeout_s: float) -> int | None:
        """Like :meth:`poll`, after at most ``timeout_s`` seconds."""

    @property
    def lost(self) -> str | None:
        """How the host was lost while it ran, in words; None while it was not. The host ends it by itself then."""

    def listens(self, port: int) -> bool:
        """Whether one of its processes listens on a port of the host."""

    def stop(self) -> str | None:
        """SIGTERM to all its processes, SIGKILL after the grace period. What cannot be ended, in words; None if all has
        ended. Safe to call twice."""


class Host(Protocol):
    """A machine that engines run on.

    Commands are lists of arguments; nothing is ever put together to a line for a shell but by quoting each of them.
    Paths on the host may begin with ``~/``. Any method may raise HostFailure when the host is down or lost.
    """

    def __hash__(self) -> int: ...

    @property
    def config(self) -> HostConfig: ...

    @property
    def is_local(self) -> bool: ...

    def connect(self) -> None:
        """Makes sure the host can be reached. Called by every method that needs it.

        Raises:
            ConfigError: the host's key is not the one that is known, or it refuses ours, or nobody knows its name.
            HostFailure: it does not answer.
        """

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = RUN_TIMEOUT_S,
        input: bytes | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> Completed:
        """Runs a command to its end in the home directory there. ``env`` is laid over the host's own environment.

        A command that cannot be found has status 127. Raises HostFailure when it takes longer than ``timeout_s``.
        ``env`` can be seen in the host's list of processes: no place for secrets.
        """

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        log: Path,
        grace_s: float = 15.0,
        locks: Sequence[str] = (),
    ) -> Process:
        """Starts a program in a process group of its own under :mod:`runners.keeper`, which ends it when this process
        or the connection to it is gone. Output is appended to ``log``, here, as it comes.

        ``locks`` are names (of a GPU, say) that are held on the host, for all its users, as long as the program runs;
        one that another program holds ends this one at once with status 75 and a line in ``log``.
        """

    def start_script(self, module: ModuleType, words: Sequence[str], *, log: Path) -> Process:
        """Starts one of the scripts of :mod:`runners.hosts` there; see :meth:`start`."""

    def forward(self, port: int) -> AbstractContextManager[int]:
        """A port of this machine's loopback that leads to ``port`` of the host's, while in the context."""

    def put(self, local: Path, remote: str) -> None:
        """Copies a file, or a folder with all in it, to the host; ``remote`` is what it is called there. Folders above
        it are made. A file is in its place whole or not at all."""

    def get(self, remote: str, local: Path) -> None:
        """Copies a file or a folder from the host. Raises HostFailure if there is none."""

    def path(self, *parts: str) -> str:
        """The absolute path of a place in ``host.workdir``."""

    def expand(self, path: str) -> str:
        """A path there without ``~/``."""

    def free_port(self) -> int:
        """A port of the host's loopback on which nobody listened a moment ago."""

    def claim_port(self, port: int | None, key: str = "engine.port") -> int:
        """``port`` if a server can listen on it there, or a free one for None. Raises ConfigError, named ``key``."""

    def used_gib(self, gpu: Gpu) -> float | None:
        """Memory of a GPU in use by anybody, in GiB; None where it cannot be read."""

    def facts(self) -> dict[str, Any]:
        """What the machine is, see :func:`runners.hosts.agent.facts`."""

    def close(self) -> None:
        """Ends the connection, and with it whatever still runs over it. Safe to call twice."""
