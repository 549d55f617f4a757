"""The closed loop against a slow twin that goes step by step, and against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.cost import Fit, Hinges, Range
from ddbench.cost.loop import Clocks, Requests, closed_loop
from ddbench.errors import ConfigError

ANY = Range((1, 64), (1, 64), (0, 4096), (1, 4096))
FIT = Fit(3.0, Hinges((1.0, 20.0), (0.1, 0.3)), Hinges((1.0,), (0.5,)), 0.001, 0.0002, ANY, context_alone=0.03)


def step_by_step(requests: Requests, batch_size: int, fit: Fit, width: int, prompt_token: float, late: int) -> Clocks:
    """Every step on its own."""
    count = len(requests.steps)
    start, first, finish = np.zeros(count), np.zeros(count), np.zeros(count)
    done = np.zeros(count, dtype=int)
    waiting, active, now = list(range(count)), list[int](), 0.0
    while waiting or active:
        while waiting and len(active) < batch_size:
            new = waiting[: batch_size - len(active)]
            waiting = waiting[len(new) :]
            for one in new:
                start[one] = now
            now += prompt_token * len(new) * max(int(requests.prompt_tokens[one]) for one in new)
            for one in new:
                first[one] = finish[one] = now
            active += [one for one in new if requests.steps[one] > 0]
        if not active:
            continue
        lengths = [
            requests.prompt_tokens[one]
            + min(done[one], requests.steps[one]) * (requests.output_tokens[one] - 1) / requests.steps[one]
            for one in active
        ]
        now += float(fit(width, len(active), np.mean(lengths), extrapolate=True))
        done[active] += 1
        for one in [one for one in active if done[one] == requests.steps[one]]:
            finish[one] = now
        active = [one for one in active if done[one] < requests.steps[one] + late]
    return Clocks(start, first, finish)


some = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(some, st.integers(1, 5), st.integers(1, 33), st.integers(0, 2))
def test_it_equals_the_slow_twin(made: list[tuple[int, int, int]], batch_size: int, width: int, late: int) -> None:
    prompts = np.array([prompt for prompt, _, _ in made])
    steps = np.array([rounds for _, rounds, _ in made])
    output = np.array([1 + rounds * emitted for _, rounds, emitted in made])
    requests = Requests(prompts, output, steps)
    fast = closed_loop(requests, batch_size, FIT, width, lambda tokens: 0.01 * tokens, late)
    slow = step_by_step(requests, batch_size, FIT, width, 0.01, late)
    for name in ("start", "first_token", "finish"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=1e-9)


def test_two_requests_in_turn_and_together() -> None:
    """Cost 2 + b a step, reading 1 a prompt; steps 3 and 1, outputs 7 and 2."""
    fit = Fit(2.0, Hinges(), Hinges((0.0,), (1.0,)), 0.0, 0.0, ANY)
    requests = Requests(np.array([4, 4]), np.array([7, 2]), np.array([3, 1]))
    alone = closed_loop(requests, 1, fit, 1, lambda _: 1.0)
    assert alone.finish.tolist() == [10.0, 14.0]  # 1 + 3 x 3, then 1 + 3
    assert alone.tokens_per_s(requests) == pytest.approx(1e3 * 9 / 14)
    assert alone.tokens_per_s_per_user(requests) == pytest.approx(1e3 * 7 / 12)
    both = closed_loop(requests, 2, fit, 1, lambda _: 1.0)
    assert both.finish.tolist() == [11.0, 5.0]  # 1, one step of two at 4, two of one at 3
    assert both.first_token.tolist() == [1.0, 1.0]


def test_a_place_is_free_a_step_late() -> None:
    """Cost 2 + b a step, reading 1; one place: the first ends at 10 and steps once more, as 3 more milliseconds."""
    fit = Fit(2.0, Hinges(), Hinges((0.0,), (1.0,)), 0.0, 0.0, ANY)
    requests = Requests(np.array([4, 4]), np.array([7, 2]), np.array([3, 1]))
    alone = closed_loop(requests, 1, fit, 1, lambda _: 1.0, late=1)
    assert alone.start.tolist() == [0.0, 13.0]
    assert alone.finish.tolist() == [10.0, 17.0]  # 1 + 3 x 3, then 3 + 1 + 3
    both = closed_loop(requests, 2, fit, 1, lambda _: 1.0, late=1)
    assert both.finish.tolist() == [12.0, 5.0]  # 1, then two steps of two at 4 and one of one at 3


def test_the_mean_context_weighs_steps() -> None:
    requests = Requests(np.array([10, 100]), np.array([5, 1]), np.array([2, 0]))
    assert requests.mean_context() == pytest.approx(11.0)  # lengths 10 and 12
    assert Requests(np.array([10]), np.array([1]), np.array([0])).mean_context() is None


def test_nothing_but_first_tokens_has_no_speed_of_a_user() -> None:
    requests = Requests(np.array([5]), np.array([1]), np.array([0]))
    clocks = closed_loop(requests, 4, FIT, 1)
    assert clocks.tokens_per_s_per_user(requests) is None
    assert clocks.tokens_per_s(requests) is None


def test_no_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size=0"):
        closed_loop(Requests(np.array([5]), np.array([1]), np.array([0])), 0, FIT, 1)
