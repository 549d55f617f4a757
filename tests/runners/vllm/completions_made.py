"""Completions as a server would have given them, made from the rounds of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from runners.client import Completion
from runners.completions import Speculation, TokenRequest
from runners.counts import SpecCounters


def completion(accepted: Sequence[int], cut: int = 0, drafted: int | None = None) -> Completion:
    """A request whose rounds accepted so many tokens, and whose last one lost ``cut`` at the token limit.

    ``drafted``: tokens of a draft, where the server tells its counts by request.
    """
    chunks = [1, *(each + 1 for each in accepted)]
    chunks[-1] -= cut
    tokens = sum(chunks)
    said = None
    if drafted is not None:
        counts = Counter(accepted)
        histogram = tuple(counts[index] for index in range(drafted + 1))
        rounds = len(accepted)
        drafts = (drafted,) * rounds
        said = Speculation(rounds, drafted * rounds, sum(accepted), histogram, tuple(accepted), drafts)
    times = tuple(float(index) for index in range(len(chunks)))
    return Completion(
        TokenRequest((1, 2), tokens),
        tuple(range(tokens)),
        times,
        tuple(chunks),
        -1.0,
        0.0,
        times[-1],
        "length",
        2,
        0,
        said,
        None,
    )


def counters(rounds: Sequence[Sequence[int]], drafted: int) -> SpecCounters:
    """What the server counted over the rounds of all requests."""
    flat = [accepted for each in rounds for accepted in each]
    by_position = tuple(sum(accepted > index for accepted in flat) for index in range(drafted))
    return SpecCounters(len(flat), drafted * len(flat), sum(flat), by_position)
