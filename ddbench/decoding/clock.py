"""Seconds by stage of a round: host clocks on a CPU, events on CUDA so that no stage waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

Stage = Literal["draft", "build", "verify", "commit"]


class StageClock:
    """``start``, ``mark(stage)`` at the end of each stretch of work, ``read``; a stage may be marked twice."""

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        self._cuda = device.type == "cuda"
        self._clock = clock
        self._marks: list[tuple[Stage | None, float | torch.cuda.Event]] = []

    def start(self) -> None:
        self._marks = [(None, self._point())]

    def mark(self, stage: Stage) -> None:
        self._marks.append((stage, self._point()))

    def read(self) -> dict[Stage, float]:
        """Seconds of each stage since ``start``; on CUDA waits for the last mark."""
        seconds: dict[Stage, float] = {"draft": 0.0, "build": 0.0, "verify": 0.0, "commit": 0.0}
        last = self._marks[-1][1]
        if isinstance(last, torch.cuda.Event):
            last.synchronize()
        for (_, begin), (stage, end) in zip(self._marks, self._marks[1:], strict=False):
            assert stage is not None
            seconds[stage] += _seconds(begin, end)
        return seconds

    def _point(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return self._clock()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _seconds(begin: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(begin, torch.cuda.Event) and isinstance(end, torch.cuda.Event):
        return float(begin.elapsed_time(end)) / 1e3
    assert isinstance(begin, float)
    assert isinstance(end, float)
    return end - begin
