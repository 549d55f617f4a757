"""An engine in a process of its own that takes a JSON line and gives one back."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from runners import engine_log
from runners.base import EngineFailure

LAST_LINES = 40


class Child:
    """Started at once; what it prints to standard error goes to ``log``. Its first line says that it is up."""

    def __init__(self, name: str, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("w") as stream:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=os.environ | dict(environment),
                start_new_session=True,
            )

    def ask(self, *, timeout_s: float | None = None, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer. Raises EngineFailure when the engine is gone, or too slow."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer will say why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self.answer(timeout_s)

    def answer(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next line. Raises EngineFailure, with the end of the log, when there is none, or none in time."""
        stream: IO[str] | None = self._process.stdout
        assert stream is not None
        if timeout_s is not None and not select.select([stream], [], [], max(timeout_s, 0.0))[0]:
            raise EngineFailure(f"{self.name}: no answer in {timeout_s:.0f} s; {self._last()}")
        line = stream.readline()
        if not line:
            self._process.wait()
            raise EngineFailure(f"{self.name}: exit {self._process.returncode}; {self._last()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last(self) -> str:
        text = self.log_text()
        last = text.strip().splitlines()[-LAST_LINES:]
        return f"{engine_log.cause(text)}; log {self.log}\n" + "\n".join(last)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        """Kills the process and all that it started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
