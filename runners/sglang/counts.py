"""Verify rounds and accepted tokens of each request, as SGLang tells them in its last event.

SGLang counts them before an output is cut (``sglang/srt/managers/scheduler_components/batch_result_processor.py``,
``_resolve_spec_v2_tokens``), and an event is a round: what the events brought must fit the counts, round by round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runners import tables
from runners.client import Completion
from runners.completions import Speculation
from runners.counts import UNKNOWN, RequestCounts, Tally, told, trimmed

SOURCE = "meta_info of the responses, rounds by the events of the streams"


def tally(completions: Sequence[Completion], drafted: int, others: bool = False) -> Tally:
    """Counts of the requests of a cell. ``drafted``: tokens of a draft, 0 for autoregressive decoding. ``others``: the
    sources are somebody else's, which may count nothing: then nothing is known."""
    if not drafted:
        return Tally(tuple(_of_plain(each) for each in completions), "no speculation")
    if others and all(each.speculation is None for each in completions):
        return Tally((UNKNOWN,) * len(completions), "not told by the server")
    return Tally(tuple(told(each, by_round(each, drafted)) for each in completions), SOURCE)


def _of_plain(completion: Completion) -> RequestCounts:
    """Nothing, unless the server speculated though it was not to: then its counts, for all to see."""
    return RequestCounts() if completion.speculation is None else told(completion, completion.speculation)


def by_round(completion: Completion, drafted: int) -> Speculation:
    """The counts of a request with the accepted tokens of each round, where the events' lengths give its histogram.

    The last round may have been cut, so it has what the sum leaves. Where events were joined nothing fits, and the
    rounds stay unknown.
    """
    said = completion.speculation or Speculation(0, 0, 0, ())
    emitted = completion.chunk_tokens[1:]
    if not said.rounds or len(emitted) != said.rounds:
        return said
    before = [tokens - 1 for tokens in emitted[:-1]]
    accepted = (*before, said.accepted - sum(before))
    if accepted[-1] < emitted[-1] - 1 or tuple(tables.histogram(accepted)) != trimmed(said.histogram):
        return said
    return replace(said, accepted_by_round=accepted, drafted_by_round=(drafted,) * said.rounds)
