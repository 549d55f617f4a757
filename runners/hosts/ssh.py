"""A machine behind ssh, which is to run Linux with a Python >= 3.9. Everything goes over one connection.

Our own scripts there (keeper, agent, archive) are files in ``host.workdir``, named by their content and put there once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shlex
import tarfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from ddbench.errors import ConfigError
from runners import keeper
from runners.gpu_memory import GIB, Gpu
from runners.hosts import agent, archive
from runners.hosts.base import RUN_TIMEOUT_S, Completed, HostFailure
from runners.hosts.config import HostConfig, environment_arguments
from runners.hosts.connection import Connection
from runners.hosts.ssh_process import SILENCE_S, SshProcess
from runners.ports import free_port

COPY_TIMEOUT_S = 3600.0
TUNNEL_TRIES = 5  # a port here may be taken between the choice and the use
NO_PYTHON = 127  # exit status of a shell that finds no such program

# Puts standard input into the file that its argument names. The text is ours; values come as arguments.
INSTALL = """
import os, pathlib, sys
place = pathlib.Path(sys.argv[1])
part = place.with_name(f"{place.name}.{os.getpid()}.part")
try:
    place.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(sys.stdin.buffer.read())
    part.replace(place)
except OSError as error:
    part.unlink() if part.exists() else None
    sys.exit(str(error.strerror))
"""


class SshHost:
    """See :class:`runners.hosts.base.Host`. Connects when it is first needed, and again after a loss."""

    is_local = False

    def __init__(self, config: HostConfig) -> None:
        self.config = config
        self._connection = Connection(config)
        self._home: str | None = None
        self._scripts: dict[str, str] = {}  # by module, where ours are on the host
        self._numbers = itertools.count(1)  # of what was started

    def connect(self) -> None:
        self._connection.ensure()

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = RUN_TIMEOUT_S,
        input: bytes | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> Completed:
        words = [self.expand(argv[0]), *argv[1:]]
        changed = ["env", *environment_arguments(env)] if env else []
        return self._connection.run(shlex.join([*changed, *words]), timeout_s, input)

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        log: Path,
        grace_s: float = 15.0,
        locks: Sequence[str] = (),
    ) -> SshProcess:
        mark = uuid.uuid4().hex
        order = {
            "argv": [self.expand(argv[0]), *argv[1:]],
            "env": dict(env or {}),
            "locks": list(locks),
            "grace_s": grace_s,
            "silence_s": SILENCE_S,
        }
        line = shlex.join(["env", f"{agent.MARK}={mark}", self._python, "-I", self._script(keeper), keeper.SENT])
        self._connection.ensure()
        assert self._connection.folder is not None
        return SshProcess(
            self._connection.arguments(f"exec {line}"),
            order,
            log,
            self._connection.folder / f"process-{next(self._numbers)}.status",
            name=self._connection.name,
            bury=lambda patience_s: self._bury(mark, patience_s),
            listens=lambda port: bool(self._ask("listens", mark, str(port))),
        )

    def start_script(self, module: ModuleType, words: Sequence[str], *, log: Path) -> SshProcess:
        """Starts one of our scripts there, which ends with this process or the connection; see :meth:`start`."""
        return self.start([self._python, "-I", self._script(module), *words], log=log, grace_s=0.0)

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[int]:
        here = next((each for each in self._free_ports() if self._connection.tunnel(each, port)), None)
        if here is None:
            raise HostFailure(f"{self._connection.name}: no tunnel to its port {port} can be made")
        try:
            yield here
        finally:
            self._connection.end_tunnel(here, port)

    def put(self, local: Path, remote: str) -> None:
        def send(stream: IO[bytes]) -> None:
            archive.write(local, stream)

        path = self.expand(remote)
        line = shlex.join([self._python, "-I", self._script(archive), "receive", path])
        done = self._connection.stream(line, COPY_TIMEOUT_S, send, None)
        if not done.ok:
            raise HostFailure(f"{self._connection.name}: cannot write {path}: {done.said}")

    def get(self, remote: str, local: Path) -> None:
        failed: list[Exception] = []

        def take(stream: IO[bytes]) -> None:
            try:
                archive.read(stream, local)
            except (OSError, tarfile.TarError) as error:
                failed.append(error)

        path = self.expand(remote)
        line = shlex.join([self._python, "-I", self._script(archive), "send", path])
        done = self._connection.stream(line, COPY_TIMEOUT_S, None, take)
        if not done.ok or failed:
            why = done.said if not done.ok else str(failed[0])
            raise HostFailure(f"{self._connection.name}: cannot read {path}: {why}")

    def path(self, *parts: str) -> str:
        return "/".join([self.expand(self.config.workdir).rstrip("/"), *parts])

    def expand(self, path: str) -> str:
        if path == "~" or path.startswith("~/"):
            return self._home_there() + path[1:]
        return path

    def free_port(self) -> int:
        return self.claim_port(None)

    def claim_port(self, port: int | None, key: str = "engine.port") -> int:
        if port is not None and not 1 <= port <= 65535:
            raise ConfigError(key, port, "a port from 1 to 65535, or null for any free one")
        done = self._agent("port", str(port or 0))
        if done.rc == agent.REFUSED:
            why = json.loads(done.stdout.splitlines()[-1])
            raise ConfigError(key, port, f"a free port of {self._connection.name}, or null for any free one; {why}")
        return int(self._value(done))

    def used_gib(self, gpu: Gpu) -> float | None:
        value = self._ask("used", str(gpu))
        return None if value is None else float(value) / GIB

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("facts")
        return found

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> SshHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _python(self) -> str:
        return self.expand(self.config.python)

    def _home_there(self) -> str:
        """The home directory there: where a session begins."""
        if self._home is None:
            done = self._connection.run("pwd", RUN_TIMEOUT_S, None)
            lines = done.stdout.splitlines()
            if not done.ok or not lines or not lines[-1].startswith("/"):
                raise HostFailure(f"{self._connection.name}: its home directory cannot be found ({done.said})")
            self._home = lines[-1].strip()
        return self._home

    def _script(self, module: ModuleType) -> str:
        """Where one of our scripts is on the host; put there when it is first needed."""
        name = module.__name__
        if name not in self._scripts:
            source = Path(str(module.__file__)).read_bytes()
            digest = hashlib.sha256(source).hexdigest()[:16]
            path = self.path("scripts", f"{name.rpartition('.')[2]}-{digest}.py")
            done = self._connection.run(shlex.join([self._python, "-I", "-c", INSTALL, path]), RUN_TIMEOUT_S, source)
            if done.rc == NO_PYTHON:
                allowed = f"a Python >= 3.9 on {self._connection.name} ({done.said})"
                raise ConfigError("host.python", self.config.python, allowed)
            if not done.ok:
                raise HostFailure(f"{self._connection.name}: cannot write {path}: {done.said}")
            self._scripts[name] = path
        return self._scripts[name]

    def _agent(self, *arguments: str, timeout_s: float = RUN_TIMEOUT_S) -> Completed:
        return self.run([self._python, "-I", self._script(agent), *arguments], timeout_s=timeout_s)

    def _ask(self, *arguments: str, timeout_s: float = RUN_TIMEOUT_S) -> Any:
        return self._value(self._agent(*arguments, timeout_s=timeout_s))

    def _value(self, done: Completed) -> Any:
        with contextlib.suppress(ValueError, IndexError):
            if done.ok:
                return json.loads(done.stdout.splitlines()[-1])
        raise HostFailure(f"{self._connection.name}: no sense can be made of its answer ({done.said})")

    def _bury(self, mark: str, patience_s: float) -> str | None:
        left = self._ask("bury", mark, str(patience_s), timeout_s=patience_s + RUN_TIMEOUT_S)
        return f"processes {', '.join(map(str, left))} on {self._connection.name} cannot be killed" if left else None

    @staticmethod
    def _free_ports() -> Iterator[int]:
        for _ in range(TUNNEL_TRIES):
            yield free_port()
