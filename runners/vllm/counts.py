"""Verify rounds and accepted tokens of each request, from what a server tells, and the check against its totals.

A round that accepts ``a`` drafted tokens emits ``a + 1``; the last one of a request may be cut at a stop token or the
token limit, so that fewer are kept. vLLM 0.32 and later say ``a`` of every round. Before, a stream's chunks tell what
each round emitted and kept, which is ``a + 1`` of every round but a cut one; how far the last rounds went is known for
the cell as a whole, from the counters by position, and not by request. Then :func:`from_chunks` deals the last rounds'
true counts to requests so that every one fits what that request kept: sums and histogram of a cell are exact, to which
of two requests a cut-off token belongs may not be.
"""

from __future__ import annotations

from collections.abc import Sequence

from runners import tables
from runners.client import Completion
from runners.completions import Speculation
from runners.counts import RequestCounts, RoundCount, SpecCounters, Tally, told


def tally(completions: Sequence[Completion], drafted: int, totals: SpecCounters) -> Tally:
    """Counts of the requests of a cell. ``drafted``: tokens of a draft, 0 for autoregressive decoding."""
    if not drafted:
        return Tally(tuple(RequestCounts() for _ in completions), "no speculation")
    said = [each.speculation for each in completions]
    if any(said):
        counts = tuple(told(each, each.speculation or Speculation(0, 0, 0, ())) for each in completions)
        return Tally(counts, "per-request metrics of the responses")
    return from_chunks(completions, drafted, totals)


def from_chunks(completions: Sequence[Completion], drafted: int, totals: SpecCounters) -> Tally:
    """Counts where a stream has one chunk a round (see the module); the caller checks the sums against ``totals``."""
    emitted = [each.chunk_tokens[1:] for each in completions]
    histogram = totals.histogram
    for chunks in emitted:
        for tokens in chunks[:-1]:
            if tokens <= len(histogram):
                histogram[tokens - 1] -= 1
    kept = [chunks[-1] - 1 for chunks in emitted if chunks]
    dealt = deal(kept, histogram)
    guessed = 0 if dealt is None or dealt == kept else sum(a != b for a, b in zip(dealt, kept, strict=True))
    last = iter(kept if dealt is None else dealt)
    counts = tuple(_chunked(chunks, next(last), drafted) if chunks else RequestCounts() for chunks in emitted)
    return Tally(counts, "chunks of the streams, last rounds from the counters of the server", guessed)


def deal(kept: Sequence[int], histogram: Sequence[int]) -> list[int] | None:
    """True counts of the last rounds, each at least what was kept, that use up ``histogram``; None if none do.

    The largest goes to whom kept most, the order of requests deciding among equals.
    """
    if sum(histogram) != len(kept) or any(count < 0 for count in histogram):
        return None
    values = [value for value, count in enumerate(histogram) for _ in range(count)]
    order = sorted(range(len(kept)), key=lambda index: kept[index])
    dealt = [0] * len(kept)
    for index, value in zip(order, values, strict=True):
        dealt[index] = value
    return dealt if all(value >= least for value, least in zip(dealt, kept, strict=True)) else None


def _chunked(chunks: Sequence[int], last_raw: int, drafted: int) -> RequestCounts:
    rounds = [RoundCount(drafted, tokens - 1, tokens - 1, tokens) for tokens in chunks]
    rounds[-1] = RoundCount(drafted, min(last_raw, chunks[-1]), last_raw, chunks[-1])
    return RequestCounts(
        rounds=len(rounds),
        drafted=drafted * len(rounds),
        accepted=sum(each.accepted for each in rounds),
        accepted_raw=sum(each.accepted_raw for each in rounds),
        histogram=tuple(tables.histogram([each.accepted_raw for each in rounds])),
        by_round=tuple(rounds),
    )
