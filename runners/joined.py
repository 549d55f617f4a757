"""Stream events that stand for several engine steps: where they do, the clocks of requests are not those of steps.

A server that falls behind with sending joins what several steps brought into one event, and a client that falls behind
reads several events at one moment. Either way tokens seem to come later than they did, and together: in the extreme a
whole text at once, whose first token then took all of the latency and the others no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runners.client import Completion
from runners.counts import Tally

TOLERATED = 0.02  # of the steps, and of the first events


@dataclass(frozen=True)
class Joined:
    """Over the requests of a cell that brought tokens. A step is one pass that gave the request tokens, prefill first.

    ``joined``: steps that had no moment of their own. ``first``: requests whose first moment held more than the one
    token of the prefill. ``spoiled``: requests with either.
    """

    requests: int
    steps: int
    joined: int
    first: int
    spoiled: int

    @property
    def problem(self) -> str | None:
        """Why the clocks are not to be trusted, with the numbers; None where few enough are joined."""
        if self.joined <= TOLERATED * self.steps and self.first <= TOLERATED * self.requests:
            return None
        return (
            f"joined stream events: {self.joined:,} of {self.steps:,} steps, {self.first:,} first tokens; "
            f"clocks of {self.spoiled:,} of {self.requests:,} requests are not to be trusted"
        )


def find_joined(drafted: int, completions: Sequence[Completion], tally: Tally) -> Joined:
    """What was joined. ``drafted``: tokens of a draft, 0 for autoregressive decoding, where each token is a step.

    A speculative request has a step a round, one for the prefill, and those that went without a draft. Where rounds are
    counted by events, one that holds several is missing among the rounds too, which the server's totals show; here it
    counts only if it was the first, or came together with another.
    """
    requests = steps = joined = first = spoiled = 0
    for done, counts in zip(completions, tally.requests, strict=True):
        if not done.token_ids:
            continue
        moments = len(set(done.chunk_times_s))
        taken = counts.rounds + counts.plain_steps + 1 if drafted else len(done.token_ids)
        missing = max(taken - moments, 0)
        early = _tokens_at_first(done) > 1
        requests, steps, joined = requests + 1, steps + taken, joined + missing
        first, spoiled = first + early, spoiled + (early or missing > 0)
    return Joined(requests, steps, joined, first, spoiled)


def _tokens_at_first(done: Completion) -> int:
    came = zip(done.chunk_times_s, done.chunk_tokens, strict=True)
    return sum(tokens for at_s, tokens in came if at_s == done.chunk_times_s[0])
