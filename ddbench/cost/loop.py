"""A closed loop under a cost model: who is in flight when, and for how long, without an engine.

Requests come in their order into free places, all in flight step together, one that ends makes room for the next. The
rounds of each request are known (replayed, or measured); the cost model says what a step of so many sequences takes.
Reading a prompt stops the others, as in an engine that does one or the other. Between two ends nothing changes but the
lengths, so the loop jumps from end to end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.cost.form import Fit
from ddbench.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Requests:
    """What is asked, ``[requests]`` each, in the order in which they are admitted.

    ``steps``: rounds, or tokens after the first without speculation. ``output_tokens`` holds the first token.
    """

    prompt_tokens: Ints
    output_tokens: Ints
    steps: Ints

    def mean_context(self) -> float | None:
        """Committed tokens of a sequence when a step begins, mean over all steps; None without any."""
        growth = (self.output_tokens - 1) / np.maximum(self.steps, 1)
        lengths = self.prompt_tokens + growth * (self.steps - 1) / 2
        total = self.steps.sum()
        return float((self.steps * lengths).sum() / total) if total else None


@dataclass(frozen=True)
class Clocks:
    """Milliseconds by request ``[requests]``, counted from the first admission."""

    start: Floats
    first_token: Floats
    finish: Floats

    def tokens_per_s(self, requests: Requests) -> float | None:
        """All output tokens over the whole span, ramps included: the aggregate of a sweep."""
        span = float(self.finish.max() - self.start.min())
        return 1e3 * float(requests.output_tokens.sum()) / span if span > 0 else None

    def tokens_per_s_per_user(self, requests: Requests) -> float | None:
        """Tokens after the first over the time after it: what one request sees, as ``ddbench.metrics`` defines it."""
        some = requests.output_tokens > 1
        seconds = float((self.finish - self.first_token)[some].sum())
        return 1e3 * float((requests.output_tokens - 1)[some].sum()) / seconds if seconds > 0 else None


def closed_loop(
    requests: Requests,
    batch_size: int,
    step: Fit,
    verify_width: int,
    prefill: Callable[[float], float] | None = None,
    late: int = 0,
) -> Clocks:
    """The clocks of ``requests`` with ``batch_size`` of them in flight.

    Args:
        step: the cost of a step.
        verify_width: of the arm.
        prefill: milliseconds of reading so many tokens; prompts that enter together are padded to the longest. None:
            no time.
        late: steps that a request still takes part in, no longer growing, after its last; its place is free after
            them (:func:`ddbench.cost.late.late_steps`).

    Raises:
        ConfigError: no place for a request.
    """
    if batch_size < 1:
        raise ConfigError("batch_size", batch_size, "an integer >= 1")
    count = len(requests.steps)
    start, first, finish = np.zeros(count), np.zeros(count), np.zeros(count)
    fixed = [0.0, *step(verify_width, np.arange(1, batch_size + 1), 0.0, extrapolate=True).tolist()]
    a_token = step.row_context + step.token_context * verify_width  # ms a committed token, whichever sequence it is of
    a_mean_token = step.context_alone  # ms a token of the mean length
    growth = (requests.output_tokens - 1) / np.maximum(requests.steps, 1)
    waiting = deque(range(count))
    left: dict[int, int] = {}  # steps to go of those in flight, the late ones included
    length: dict[int, float] = {}
    now = 0.0
    while waiting or left:
        while waiting and len(left) < batch_size:
            new = [waiting.popleft() for _ in range(min(batch_size - len(left), len(waiting)))]
            start[new] = now
            now += prefill(float(len(new) * requests.prompt_tokens[new].max())) if prefill is not None else 0.0
            first[new] = finish[new] = now
            for one in new:
                if requests.steps[one] > 0:
                    left[one], length[one] = int(requests.steps[one]) + late, float(requests.prompt_tokens[one])
        if not left:
            continue
        many = min(steps - late if steps > late else steps for steps in left.values())
        growing = [one for one, steps in left.items() if steps > late]
        grown = sum(float(growth[one]) for one in growing)
        read = many * sum(length[one] for one in left) + grown * many * (many - 1) / 2
        now += many * fixed[len(left)] + (a_token + a_mean_token / len(left)) * read
        for one in growing:
            length[one] += many * float(growth[one])
            if left[one] - many == late:
                finish[one] = now
        left = {one: steps - many for one, steps in left.items() if steps > many}
    return Clocks(start, first, finish)
