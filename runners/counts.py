"""Verify rounds and accepted tokens of each request, whichever engine told them.

A round that accepts ``a`` drafted tokens emits ``a + 1``; the last one of a request may be cut at a stop token or the
token limit, so that fewer are kept. Engines count before that cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from runners.client import Completion
from runners.completions import Speculation


@dataclass(frozen=True)
class SpecCounters:
    """Sums over all requests: verify rounds with a draft, drafted tokens, accepted ones, and by position.

    ``by_position[i]``: rounds that accepted more than i drafted tokens. ``drafted``: None where the engine does not
    count them.
    """

    drafts: int = 0
    drafted: int | None = 0
    accepted: int = 0
    by_position: tuple[int, ...] = ()

    def since(self, earlier: SpecCounters) -> SpecCounters:
        """What was counted since ``earlier``."""
        width = max(len(self.by_position), len(earlier.by_position))
        before, after = ((*each, *(0,) * (width - len(each))) for each in (earlier.by_position, self.by_position))
        return SpecCounters(
            self.drafts - earlier.drafts,
            None if self.drafted is None or earlier.drafted is None else self.drafted - earlier.drafted,
            self.accepted - earlier.accepted,
            tuple(b - a for a, b in zip(before, after, strict=True)),
        )

    @property
    def histogram(self) -> list[int]:
        """[a] = rounds that accepted exactly a drafted tokens, without zeros at the end."""
        reached = [self.drafts, *self.by_position, 0]
        counts = [here - further for here, further in pairwise(reached)]
        while counts and counts[-1] == 0:
            counts.pop()
        return counts


@dataclass(frozen=True)
class RoundCount:
    """One verify round; ``drafted`` None where the server does not say it."""

    drafted: int | None
    accepted: int
    accepted_raw: int
    emitted: int


@dataclass(frozen=True)
class RequestCounts:
    """Counts of one request as ``requests.parquet`` has them.

    ``by_round`` None: only the sums are known. ``drafted`` None: the engine does not count what a tree had. ``known``
    False: it told nothing of what is counted here, and null is stored.
    """

    rounds: int = 0
    drafted: int | None = 0
    accepted: int = 0
    accepted_raw: int = 0
    histogram: tuple[int, ...] = ()
    by_round: tuple[RoundCount, ...] | None = ()
    plain_steps: int = 0  # decode steps without a draft
    known: bool = True


UNKNOWN = RequestCounts(drafted=None, by_round=None, known=False)


@dataclass(frozen=True)
class Tally:
    """Counts of a cell's requests, in their order. ``guessed``: requests whose cut-off tokens were dealt to them."""

    requests: tuple[RequestCounts, ...]
    source: str
    guessed: int = 0

    @property
    def known(self) -> bool:
        return all(each.known for each in self.requests)

    @property
    def sums(self) -> SpecCounters:
        rounds, raw = (sum(getattr(each, name) for each in self.requests) for name in ("rounds", "accepted_raw"))
        drafted = [each.drafted for each in self.requests if each.drafted is not None]
        return SpecCounters(rounds, sum(drafted) if len(drafted) == len(self.requests) else None, raw)

    def without_drafted(self) -> Tally:
        """The same where the engine's number of drafted tokens is none of the trees'."""
        return replace(self, requests=tuple(_without_drafted(each) for each in self.requests))


def _without_drafted(counts: RequestCounts) -> RequestCounts:
    rounds = None if counts.by_round is None else tuple(replace(each, drafted=None) for each in counts.by_round)
    return replace(counts, drafted=None, by_round=rounds)


def told(completion: Completion, said: Speculation) -> RequestCounts:
    """The engine's own counts, and what of them the output kept."""
    emitted = max(len(completion.token_ids) - 1, 0)
    excess = said.rounds + said.accepted - emitted  # tokens cut off, less those of steps without a draft
    steps = len(completion.chunk_tokens) - 1
    plain = max(steps - said.rounds, -excess, 0) if emitted else 0
    cut = max(excess + plain, 0)
    return RequestCounts(
        rounds=said.rounds,
        drafted=said.drafted,
        accepted=said.accepted - max(cut - 1, 0),
        accepted_raw=said.accepted,
        histogram=trimmed(said.histogram),
        by_round=_rounds_told(said, cut) if plain == 0 else None,
        plain_steps=plain,
    )


def _rounds_told(said: Speculation, cut: int) -> tuple[RoundCount, ...] | None:
    accepted, drafted = said.accepted_by_round, said.drafted_by_round
    if said.rounds == 0:
        return ()
    if accepted is None or drafted is None:
        return None
    rounds = [RoundCount(d, a, a, a + 1) for a, d in zip(accepted, drafted, strict=True)]
    last = rounds[-1]
    emitted = last.emitted - cut
    rounds[-1] = replace(last, emitted=emitted, accepted=min(last.accepted_raw, emitted))
    return tuple(rounds)


def trimmed(histogram: Sequence[int]) -> tuple[int, ...]:
    length = max((index + 1 for index, count in enumerate(histogram) if count), default=0)
    return tuple(histogram[:length])
