from __future__ import annotations

from collections.abc import Callable

import pytest

from runners.client import Completion
from runners.completions import TokenRequest
from runners.load import LoadResult
from runners.warmup import steady, step_time, warm_up

REQUEST = TokenRequest((1,), 4)


def completion(*times_s: float, error: str | None = None) -> Completion:
    ends = times_s or (1.0,)
    return Completion(
        REQUEST, (5,) * len(times_s), times_s, (1,) * len(times_s), 0.0, ends[0], ends[-1], "length", 1, 0, None, error
    )


def passes(*steps_s: float) -> Callable[[], LoadResult]:
    waiting = iter(steps_s)

    def run() -> LoadResult:
        step = next(waiting)
        return LoadResult((completion(1.0, 1.0 + step, 1.0 + 2 * step),), (0.0,), 0.0, 1.0, 1)

    return run


def test_it_stops_once_two_passes_agree() -> None:
    done = warm_up(passes(9.0, 1.0, 0.5, 0.48, 0.1))
    assert done.step_s == pytest.approx((9.0, 1.0, 0.5, 0.48))
    assert done.problem is None
    assert not done.failed


def test_a_pass_that_compiled_does_not_count() -> None:
    said = iter([["before"], ["graph 1"], [], ["graph 2"], []])
    done = warm_up(passes(0.5, 0.5, 0.5, 0.5, 0.5), lambda: next(said))
    assert len(done.step_s) == 2  # the first pass compiled, the second did not and agrees with it
    said = iter([[], [], ["graph 1"], ["graph 2"], []])
    assert len(warm_up(passes(0.5, 0.5, 0.5, 0.5), lambda: next(said)).step_s) == 4


def test_it_is_bounded_and_says_what_was_not_steady() -> None:
    restless = warm_up(passes(4.0, 2.0, 1.0, 0.5), max_passes=3)
    assert restless.step_s == pytest.approx((4.0, 2.0, 1.0))
    assert restless.problem is not None
    assert restless.problem.startswith("not steady after 3 passes")
    assert restless.problem.endswith("steps of 2000.00 and 1000.00 ms")
    assert not restless.failed
    compiling = warm_up(passes(1.0, 1.0, 1.0), lambda: ["graph of size 3"], max_passes=2)
    assert (compiling.problem or "").endswith("it compiled: graph of size 3")
    assert len(warm_up(passes(1.0, 9.0), max_s=0.0).step_s) == 1


def test_a_failed_request_ends_it() -> None:
    def run() -> LoadResult:
        return LoadResult((completion(1.0, 2.0), completion(error="HTTP 500: no")), (0.0, 0.0), 0.0, 1.0, 2)

    done = warm_up(run)
    assert done.failed
    assert done.problem == "1 of 2 warm-up requests failed: HTTP 500: no"


def test_steadiness() -> None:
    assert not steady([1.0], 0.1)
    assert steady([9.0, 1.0, 1.1], 0.1)
    assert steady([9.0, 1.0, 0.9], 0.1)
    assert not steady([1.0, 1.0, 0.89], 0.1)
    assert steady([0.0, 0.0], 0.1)


def test_a_step_is_the_gap_between_chunks() -> None:
    assert step_time([completion(1.0, 2.0, 3.0), completion(1.0, 1.5), completion(7.0)]) == 0.75
    assert step_time([completion(3.0), completion(5.0)]) == 4.0
