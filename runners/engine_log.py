"""What the log of an engine server says: the cause of a death, and whether it compiled something."""

from __future__ import annotations

import re
from pathlib import Path

TAIL_BYTES = 16 * 2**20  # a server with many streams ends in as many tracebacks, after the one that matters
CAUSE_CHARACTERS = 600

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# "(EngineCore pid=12) ERROR 01-31 10:00:00 [core.py:99] ": the processes of an engine mark their lines, tracebacks too
_PREFIX = re.compile(
    r"^(?:\([^)]{1,60}\)\s+)?(?:(?:ERROR|CRITICAL)\s+[\d-]+ [\d:.,]+\s+\[[^\]]*\]\s?)?(?:\[\d{4}-[^\]]*\]\s)?"
)
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Failure|Timeout|Dead)\b(?::.*)?$"
)
# Exceptions that tell of another one: what a process says when its neighbour has died, or when it is being ended. And
# those of one request that was refused, which end nothing.
_ECHO = re.compile(
    r"(?:root cause|stack trace|traceback) \(?above|EngineDead|CancelledError|KeyboardInterrupt|SystemExit"
    r"|GeneratorExit|BrokenPipe|ConnectionReset|EOFError|^RuntimeError: cancelled$|VLLMValidationError"
)
# Deaths that leave no exception. Exit code -15, or none, is that of a process that its engine has just ended.
_DEATH = re.compile(
    r"died unexpectedly \(exit code: -(?!15\b)\d+\)|terminate called|Segmentation fault|^Killed|core dumped"
)
_NEAR = 25  # lines: a death this soon after an exception is its consequence, a later one has a cause of its own
_ERROR = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)
_NOISE = re.compile(
    r"resource_tracker|\bleaked\b|nanobind|destroy_process_group|Shutting down|Waiting for application shutdown"
    r"|Application shutdown complete|Finished server process|^\s*warnings\.warn\("
)


def cause(log: str) -> str | None:
    """The line that says why an engine died, without the log's prefixes; None for an empty log.

    The last exception that is not the echo of another (its first line), or the news of a process's death where no such
    exception stands just before it. Without either, the last exception of any kind, the last line with an error, or
    the last one that is not noise of a shutdown.
    """
    lines = [line for line in (_bare(line) for line in log.splitlines()) if line.strip()]
    exceptions = [index for index, line in enumerate(lines) if _EXCEPTION.match(line)]
    first_hand = [index for index in exceptions if not _ECHO.search(lines[index])]
    deaths = [index for index, line in enumerate(lines) if _DEATH.search(line)]
    if deaths and first_hand and deaths[-1] - first_hand[-1] <= _NEAR:
        deaths = []
    errors = [index for index, line in enumerate(lines) if _ERROR.search(line)]
    plain = [index for index, line in enumerate(lines) if not _NOISE.search(line)]
    for found in (deaths, first_hand, exceptions, errors, plain, range(len(lines))):
        if found:
            return lines[found[-1]].strip()[:CAUSE_CHARACTERS]
    return None


def last_lines(log: str, count: int = 3) -> str:
    """The last lines that say something, in one line; for what has ended without a cause."""
    lines = [line.strip() for line in map(_bare, log.splitlines()) if line.strip()]
    return " | ".join(lines[-count:])[:CAUSE_CHARACTERS] or "nothing"


def _bare(line: str) -> str:
    return _PREFIX.sub("", _COLOUR.sub("", line)).rstrip()


def read_part(path: Path, start: int = 0, end: int | None = None) -> bytes:
    """Bytes ``start`` to ``end`` of a file (end: to its present end); nothing if the file is not there."""
    try:
        with path.open("rb") as stream:
            stream.seek(start)
            return stream.read() if end is None else stream.read(max(end - start, 0))
    except FileNotFoundError:
        return b""


def read_tail(path: Path, start: int = 0) -> str:
    """The last 16 MiB of a log, or what follows byte ``start`` if that is less."""
    size = path.stat().st_size if path.exists() else 0
    return read_part(path, max(start, size - TAIL_BYTES)).decode(errors="replace")


class LogWatch:
    """Tells whether a growing log has new lines that match a pattern, for example those of a compilation."""

    def __init__(self, path: Path, pattern: str) -> None:
        self.path = path
        self._pattern = re.compile(pattern)
        self._offset = path.stat().st_size if path.exists() else 0

    def seen(self) -> list[str]:
        """The matching lines written since this object was made or last asked. A line not yet ended waits."""
        part = read_part(self.path, self._offset)
        whole = part[: part.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for line in whole.decode(errors="replace").splitlines() if self._pattern.search(line)]
