"""The steps of a training, ended by their number or by the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """``place`` in [0, steps) is where the schedule stands: ``step`` itself unless the clock is ahead of it."""

    step: int
    place: float
    note: bool  # a part of the training has passed: time for an entry in the log


def paced(steps: int, seconds: float | None, notes: int) -> Iterator[Turn]:
    """Turns until ``steps`` or ``seconds`` are over, ``notes`` of them (and the first) marked for the log.

    With ``seconds`` the schedule runs by the clock wherever the steps are slower than that, so that the learning rate
    has come down by the time the clock ends the training.
    """
    began, noted = time.perf_counter(), -1
    for step in range(steps):
        passed = 0.0 if seconds is None else (time.perf_counter() - began) / seconds
        if passed >= 1.0:
            return
        place = max(float(step), passed * steps)
        part = int(notes * (place / max(1, steps - 1) if seconds is None else place / steps))
        yield Turn(step, place, part > noted)
        noted = max(noted, part)
