"""This machine as a host: no connection, no copy, the same life cycle."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from runners import gpu_memory, keeper, ports
from runners.gpu_memory import Gpu
from runners.hosts import agent
from runners.hosts.base import RUN_TIMEOUT_S, Completed, HostFailure
from runners.hosts.config import LOCAL, HostConfig

POLL_S = 0.1
KEEPER_MARGIN_S = 5.0  # what the keeper may need beyond the grace period
KILL_TIMEOUT_S = 10.0


class LocalProcess:
    """See :class:`runners.hosts.base.Process`."""

    lost: str | None = None

    def __init__(self, child: subprocess.Popen[bytes], grace_s: float) -> None:
        self._child, self._grace_s = child, grace_s
        self._root = psutil.Process(child.pid)
        self._ended: tuple[str | None] | None = None

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self) -> int | None:
        return self._child.poll()

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(timeout_s)
        return None

    def listens(self, port: int) -> bool:
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                for connection in process.net_connections("inet"):
                    if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                        return True
        return False

    def stop(self) -> str | None:
        if self._ended is None:
            tree = self.tree()
            self._child.terminate()
            self.wait(self._grace_s + KEEPER_MARGIN_S)
            self._ended = (self._bury(tree),)
        return self._ended[0]

    def tree(self) -> list[psutil.Process]:
        """Its processes at present, the keeper first."""
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
            self._child.poll()
            if not left:
                return None
            if time.monotonic() > deadline:
                return f"processes {', '.join(str(process.pid) for process in left)} cannot be killed"
            time.sleep(POLL_S)


class LocalHost:
    """See :class:`runners.hosts.base.Host`."""

    is_local = True

    def __init__(self, config: HostConfig = LOCAL) -> None:
        self.config = config

    def connect(self) -> None:
        return

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = RUN_TIMEOUT_S,
        input: bytes | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> Completed:
        try:
            done = subprocess.run(
                list(argv),
                input=input or b"",
                capture_output=True,
                timeout=timeout_s,
                cwd=Path.home(),
                env=merged(env or {}),
            )
        except subprocess.TimeoutExpired:
            raise HostFailure(f"{argv[0]} took more than {timeout_s:g} s") from None
        except OSError as error:
            return Completed(keeper.NOT_STARTED, "", f"{argv[0]}: {error.strerror}")
        return Completed(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str | None] | None = None,
        log: Path,
        grace_s: float = 15.0,
        locks: Sequence[str] = (),
    ) -> LocalProcess:
        wrapper = [sys.executable, "-I", str(Path(keeper.__file__)), str(grace_s), str(os.getpid())]
        held = [part for name in locks for part in ("--lock", name)]
        with log.open("ab") as stream:
            child = subprocess.Popen(
                [*wrapper, *held, "--", *argv],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=merged(env or {}),
                start_new_session=True,
            )
        return LocalProcess(child, grace_s)

    def start_script(self, module: ModuleType, words: Sequence[str], *, log: Path) -> LocalProcess:
        return self.start([sys.executable, "-I", str(module.__file__), *words], log=log, grace_s=0.0)

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[int]:
        yield port

    def put(self, local: Path, remote: str) -> None:
        _copy(local, Path.home() / self.expand(remote))

    def get(self, remote: str, local: Path) -> None:
        _copy(Path.home() / self.expand(remote), local)

    def path(self, *parts: str) -> str:
        return str(Path.home().joinpath(self.expand(self.config.workdir), *parts))

    def expand(self, path: str) -> str:
        return str(Path(path).expanduser()) if path == "~" or path.startswith("~/") else path

    def free_port(self) -> int:
        return ports.free_port()

    def claim_port(self, port: int | None, key: str = "engine.port") -> int:
        return ports.claim_port(port, key)

    def used_gib(self, gpu: Gpu) -> float | None:
        return gpu_memory.used_gib(gpu)

    def facts(self) -> dict[str, Any]:
        return agent.facts()

    def close(self) -> None:
        return

    def __enter__(self) -> LocalHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def merged(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment under ``changes``; a value of None takes a variable away."""
    laid: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in laid.items() if value is not None}


def _copy(source: Path, target: Path) -> None:
    """A file or a folder. Raises HostFailure, in one line, where that cannot be."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, partial)
            partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise HostFailure(f"cannot copy {source} to {target}: {error.strerror or error}") from None


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
