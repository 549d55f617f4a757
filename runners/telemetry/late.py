"""Whether a load's client was too late for its clocks to be those of the engine."""

from __future__ import annotations

from runners.load import LoadResult
from runners.warmup import step_time


def late_client(result: LoadResult, limit: float | None) -> str | None:
    """Why the clocks of a load are not to be trusted, as the client was late; None if it was not.

    ``limit``: see :meth:`runners.loop_lag.LoopLag.problem`. A load without a stream of two events tells nothing.
    """
    done = [each for each in result.completions if each.error is None and len(each.chunk_times_s) > 1]
    return result.lag.problem(step_time(done), limit) if done else None
