"""When does a greedy continuation count as a loop?"""

from __future__ import annotations

from collections.abc import Sequence

MAX_PERIOD = 24  # tokens
MIN_SPAN = 40  # tokens the repetition must cover
NGRAM = 8


def loop_start(tokens: Sequence[int]) -> int | None:
    """Index at which exact repetition begins, or None.

    A continuation loops when its last ``MIN_SPAN`` tokens or more have one period of at most ``MAX_PERIOD`` tokens.
    The index returned is the first token that repeats the period.
    """
    count = len(tokens)
    if count < MIN_SPAN:
        return None
    best: int | None = None
    for period in range(1, MAX_PERIOD + 1):
        start = count
        while start - 1 >= period and tokens[start - 1] == tokens[start - 1 - period]:
            start -= 1
        if count - start >= MIN_SPAN - period and (best is None or start < best):
            best = start
    return best


def repeated_tokens(tokens: Sequence[int]) -> list[bool]:
    """For every token, whether the 8-gram that it ends has stood in the continuation before."""
    seen: set[tuple[int, ...]] = set()
    repeated = [False] * len(tokens)
    for end in range(NGRAM, len(tokens) + 1):
        gram = tuple(tokens[end - NGRAM : end])
        repeated[end - 1] = gram in seen
        seen.add(gram)
    return repeated


def repeated_share(tokens: Sequence[int]) -> float:
    """Share of the 8-grams that stood there before; 0 for a text too short to loop."""
    grams = len(tokens) - NGRAM + 1
    return sum(repeated_tokens(tokens)) / grams if grams >= MIN_SPAN else 0.0


def is_loop(tokens: Sequence[int]) -> bool:
    """An exact loop, or more than half of the 8-grams repeated: loops with small changes count too."""
    return loop_start(tokens) is not None or repeated_share(tokens) > 0.5


def distinct_ratio(tokens: Sequence[int]) -> float | None:
    """Distinct tokens over tokens; None for an empty continuation."""
    return len(set(tokens)) / len(tokens) if tokens else None
