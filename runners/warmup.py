"""Warm-up: the measured load, repeated until it is steady."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runners.client import Completion
from runners.load import LoadResult


@dataclass(frozen=True)
class Warmup:
    """What a warm-up did. ``step_s``: median seconds a decode step of each pass.

    ``problem``: why it is not good enough, None if it is: a request that failed, or not steady within the bounds.
    ``failed`` tells the first from the second.
    """

    step_s: tuple[float, ...]
    seconds: float
    problem: str | None = None
    failed: bool = False


def warm_up(
    run: Callable[[], LoadResult],
    compiled: Callable[[], Sequence[str]] = lambda: (),
    *,
    tolerance: float = 0.10,
    min_passes: int = 2,
    max_passes: int = 8,
    max_s: float = 300.0,
) -> Warmup:
    """Repeats ``run``, one pass of the load at the measured concurrency, until it is steady.

    Steady: the last two passes' steps differ by at most ``tolerance`` (relative), and ``compiled``, asked after each
    pass, names no compilation during the last one (see :class:`runners.engine_log.LogWatch`). No pass starts after
    ``max_s`` seconds.
    """
    began = time.monotonic()
    steps: list[float] = []
    compiled()  # what was compiled before is no matter
    while True:
        result = run()
        busy = list(compiled())
        errors = [each.error for each in result.completions if each.error]
        seconds = time.monotonic() - began
        if errors:
            said = f"{len(errors)} of {len(result.completions)} warm-up requests failed: {errors[0]}"
            return Warmup(tuple(steps), seconds, said, failed=True)
        steps.append(step_time(result.completions))
        if len(steps) >= min_passes and steady(steps, tolerance) and not busy:
            return Warmup(tuple(steps), seconds)
        if len(steps) >= max_passes or seconds >= max_s:
            why = f"it compiled: {busy[-1]}" if busy else f"steps of {_milliseconds(steps[-2:])} ms"
            return Warmup(tuple(steps), seconds, f"not steady after {len(steps)} passes in {seconds:.0f} s, {why}")


def steady(steps: Sequence[float], tolerance: float) -> bool:
    """Whether the last two differ by at most ``tolerance`` of the larger. One alone is not steady."""
    if len(steps) < 2:
        return False
    low, high = sorted(steps[-2:])
    return high - low <= tolerance * high


def step_time(completions: Sequence[Completion]) -> float:
    """Median over requests of the seconds between two chunks; of the latency where all have one chunk alone."""
    gaps = [
        (each.chunk_times_s[-1] - each.chunk_times_s[0]) / (len(each.chunk_times_s) - 1)
        for each in completions
        if len(each.chunk_times_s) > 1
    ]
    return statistics.median(gaps or [each.finish_s - each.start_s for each in completions])


def _milliseconds(steps: Sequence[float]) -> str:
    return " and ".join(f"{1000 * step:.2f}" for step in steps)
