"""The built-in PyTorch engine, in a process of its own: a crash or a hang of one cell does not end the sweep.

On another host the same process runs there, from the source of this checkout (:mod:`runners.remote_link`).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.redaction import redact
from runners.base import Answers, CellJob, CellOutcome, EngineFailure, NewPrompts, Prompt, ServerSpec
from runners.engine_log import last_lines, read_tail
from runners.hosts import LOCAL, Host, HostConfig, host_of
from runners.links import ChildLink, Link
from runners.machine import version

PARTS = ("torch", "transformers")
VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def engine_version(config: HostConfig = LOCAL) -> str:
    """ddbench, torch and transformers: what decides how the reference engine computes.

    Raises:
        ConfigError: the host has no environment that the engine could run in.
        HostFailure: it is down.
    """
    ours = {part: version(part) for part in ("ddbench", *PARTS)}
    if config.kind != "local":
        ours |= _versions_on(host_of(config))
    return " ".join(f"{package} {found}" for package, found in ours.items())


def python_on(config: HostConfig) -> str:
    """The interpreter on another host that the engine runs in. Raises ConfigError where none is configured."""
    python = config.engine_python("reference")
    if python is None:
        raise ConfigError("host.pythons.reference", None, "an interpreter on the host, with torch and transformers")
    return python


def _versions_on(host: Host) -> dict[str, str]:
    python = python_on(host.config)
    done = host.run([python, "-I", "-c", VERSIONS, *PARTS])
    if not done.ok:
        raise ConfigError("host.pythons.reference", python, f"a Python with torch and transformers ({done.said})")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


class ReferenceRunner:
    """Drives :mod:`runners.worker` in a child process; see :class:`runners.base.Runner`.

    What the engine prints while it starts goes to a temporary file. A failed start leaves it behind, without secrets,
    until a later one succeeds.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._log: Path | None = None
        self._kept: list[Path] = []  # of starts that failed
        self._link: Link | None = None

    def start(self) -> dict[str, Any]:
        self.stop()
        descriptor, log = tempfile.mkstemp(prefix="ddbench-", suffix=".log")
        os.close(descriptor)
        self._log = Path(log)
        self._link = self._open(self._log)
        kind, *rest = self._starting()
        if kind == "ready":
            while self._kept:
                self._kept.pop().unlink(missing_ok=True)
            facts: dict[str, Any] = rest[0]
            return facts
        if kind in ("refused", "busy"):
            self.stop()
            if kind == "refused":
                raise ConfigError(*rest)
            raise EngineFailure(f"the engine got no GPU (host.share_gpus): {rest[0]}", "busy")
        kept, self._log = self._log, None
        self.stop()
        self._keep(kept, rest[0])
        raise EngineFailure(f"the engine did not start: {rest[0].strip().splitlines()[-1]} (see {kept})", "start")

    def run_cell(self, job: CellJob, on_progress: Callable[[int, int], None]) -> CellOutcome:
        if self._link is None:
            self.start()
        link = self._link
        assert link is not None
        deadline, heard = time.monotonic() + self.spec.timeout_s, False
        self._send(link.job(job))
        while True:
            left_s = deadline - time.monotonic()
            message = self._message(min(left_s, self.spec.stall_s))
            if message is None:
                self.stop()
                if heard and left_s < self.spec.stall_s:  # slow, which another try would be too
                    within = f"{self.spec.timeout_s:g} s (engine.timeout_s)"
                    return CellOutcome("failed", f"the cell was not done within {within}, though tokens came")
                raise self._silence(left_s)
            heard = True
            kind, *rest = message
            if kind == "alive":
                continue
            if kind == "done":
                outcome: CellOutcome = rest[0]
                link.fetch(job)
                return outcome
            on_progress(rest[0], rest[1])

    def ask(self, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...] | None = None) -> dict[str, Any]:
        self._send(NewPrompts(prompts, warmup))
        kind, *rest = self._receive(self.spec.timeout_s)
        if kind == "refused":
            raise ConfigError(*rest)
        self.spec = replace(self.spec, prompts=prompts, warmup=self.spec.warmup if warmup is None else warmup)
        facts: dict[str, Any] = rest[0]
        return facts

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        self._send(Answers(tuple(map(tuple, token_ids))))
        _, *rest = self._receive(self.spec.timeout_s)
        texts: list[str] = rest[0]
        return texts

    def stop(self) -> None:
        if self._link is not None:
            self._link.end()
            self._link = None
        if self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None

    def _open(self, log: Path) -> Link:
        """The engine's process, started; it has yet to say that it is ready."""
        host = self.spec.host
        if host is None or host.kind == "local":
            return ChildLink(self.spec, log)
        from runners.remote_link import RemoteLink

        return RemoteLink(host_of(host), python_on(host), self.spec, log)

    def _starting(self) -> tuple[Any, ...]:
        """The first message. Raises EngineFailure, with the last lines of the log, when none comes; it is kept."""
        kept, self._log = self._log, None
        assert kept is not None
        try:
            message = self._receive(self.spec.start_s)
        except EngineFailure as failure:
            timeout = failure.kind == "hang"
            what = f"it was not ready in {self.spec.start_s:g} s" if timeout else str(failure)
            self._keep(kept)
            last = last_lines(read_tail(kept))
            kind = failure.kind if failure.kind == "lost" else "start"
            raise EngineFailure(
                f"the engine did not start: {what}; its last lines: {last} (see {kept})", kind
            ) from None
        self._log = kept
        return message

    def _keep(self, log: Path, more: str = "") -> None:
        """The log of a start that failed, with what else there is to say, and without secrets."""
        log.write_text(redact(log.read_text(encoding="utf-8", errors="replace") + more), encoding="utf-8")
        self._kept.append(log)

    def _send(self, message: object) -> None:
        """Raises EngineFailure when the process is gone."""
        assert self._link is not None
        try:
            self._link.send(message)
        except OSError:
            failure = self._link.death()
            self.stop()
            raise failure from None

    def _receive(self, timeout_s: float) -> tuple[Any, ...]:
        """The next message. Raises EngineFailure when the process is gone or silent for too long."""
        message = self._message(timeout_s)
        if message is None:
            self.stop()
            raise self._silence(timeout_s)
        return message

    def _message(self, timeout_s: float) -> tuple[Any, ...] | None:
        """The same, None if none comes in time."""
        assert self._link is not None
        try:
            return self._link.receive(timeout_s)
        except (EOFError, OSError):
            failure = self._link.death()
            self.stop()
            raise failure from None

    def _silence(self, timeout_s: float) -> EngineFailure:
        """Of an engine that was to say something within ``timeout_s`` seconds."""
        if timeout_s >= self.spec.stall_s:
            said = f"no token for {self.spec.stall_s:g} s (see engine.stall_timeout_s)"
            return EngineFailure(f"the engine hangs: {said}", "hang")
        return EngineFailure("no answer from the engine in time (see engine.timeout_s)", "hang")
