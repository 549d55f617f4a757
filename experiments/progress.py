"""What a person sees on standard error while a sweep runs: a line a cell, with the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from ddbench.records import Cell
from ddbench.redaction import redact


def say(text: str) -> None:
    """A line on standard error, in the place of a brief one."""
    erase = "\r\033[K" if sys.stderr.isatty() else ""
    with suppress(OSError):  # a terminal that was closed
        sys.stderr.write(f"{erase}{redact(text)}\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    say(f"warning: {text}")


def say_briefly(text: str) -> None:
    """A line that the next one replaces; on a terminal only, so that a refusal stays one line in a log."""
    if sys.stderr.isatty():
        with suppress(OSError):
            sys.stderr.write(f"\r\033[K{text}\r")
            sys.stderr.flush()


def duration(seconds: float) -> str:
    """Seconds in words: ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(number: int, noun: str) -> str:
    """``1 cell``, ``8 cells``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def describe(cell: Cell, several: bool = False) -> str:
    """A cell in a few words, e.g. ``ddtree width 4 depth 7 nodes 32, batch 8``; of several workloads, with its own."""
    arm = cell.arm
    shape = "".join(f" {axis} {getattr(arm, axis)}" for axis in ("width", "depth", "nodes") if getattr(arm, axis))
    heat = f", temperature {cell.temperature:g}" if cell.temperature else ""
    block = f", block {cell.block}" if cell.block else ""
    workload = f"{cell.workload}: " if several else ""
    return f"{workload}{arm.strategy}{shape}, batch {cell.batch_size}{heat}{block}"


class Progress:
    """Counts cells and foretells the rest: the estimates of what is left, scaled by how the finished ones came out.

    ``several``: the cells are of more than one workload.
    """

    def __init__(self, estimates: Sequence[float], several: bool = False) -> None:
        self._several = several
        self._estimates = list(estimates)
        self._done = 0
        self._expected = 0.0
        self._measured = 0.0
        self._shown = 0.0

    def within(self, cell: Cell, done: int, total: int) -> None:
        """Progress inside a cell: on a terminal only, and not more than five times a second."""
        if time.monotonic() - self._shown > 0.2:
            self._shown = time.monotonic()
            say_briefly(f"{self._place()} {describe(cell, self._several)}: {done} of {total} requests")

    def finished(self, cell: Cell, seconds: float, status: str, reason: str | None) -> None:
        self._expected += self._estimates[self._done]
        self._measured += seconds
        self._done += 1
        tail = f": {reason}" if reason else ""
        left = f", about {duration(self.left_s)} left" if self._done < len(self._estimates) else ""
        say(f"{self._place(0)} {describe(cell, self._several)}: {status} in {seconds:.1f} s{tail}{left}")

    def elsewhere(self) -> None:
        """A cell that another process measured: it counts as done, and says nothing of how long cells take here."""
        self._done += 1

    @property
    def left_s(self) -> float:
        scale = self._measured / self._expected if self._expected else 1.0
        return scale * sum(self._estimates[self._done :])

    def _place(self, ahead: int = 1) -> str:
        width = len(str(len(self._estimates)))
        return f"[{self._done + ahead:{width}d}/{len(self._estimates)}]"
