"""A policy replayed: the steps of a batch whose rows share what a step verifies, and are refilled as requests end.

Rows are taken, retired and moved as the reference engine does it (`ddbench.decoding.batch`): requests are admitted in
their order into free rows, the last row moves into the gap of one that ends. So a control is told the same sums in the
same order as in the engine, and decides the same, step for step.

An engine that schedules ahead sees an end late (:func:`ddbench.cost.late.late_steps`): a row whose request has ended
takes part in so many steps more, and its place is free after them. Such a row makes a step dearer and brings nothing.
A control reckons with it in the batch and its context, but is offered nothing of it, since what the drafter would say
past an end was not recorded. A step of such rows alone repeats the choice before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.adaptive import Fixed, Offer, Policy, StepCosts
from ddbench.errors import ConfigError
from ddbench.replay.offers import Offers
from ddbench.replay.outcome import Outcome

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]

PLAIN = -1  # the place of an autoregressive step


@dataclass(frozen=True)
class Steps:
    """The steps of a whole run, in order.

    Attributes:
        rows, context, place, emitted: ``[steps]`` requests that were in work, mean of the committed tokens of all rows
            of the batch, what was verified (a place among the candidates, or ``PLAIN``), tokens that came, after the
            cut at an end.
        late: ``[steps]`` rows of the batch beside them, whose request has ended.
        request, anchor, accepted: ``[row rounds]`` the rows of all steps, laid end to end: step s has
            ``rows[s]`` of them. ``accepted`` is before the cut.
    """

    rows: Ints
    context: Floats
    place: Ints
    emitted: Ints
    late: Ints
    request: Ints
    anchor: Ints
    accepted: Ints

    def milliseconds(self, offers: Offers, costs: StepCosts) -> Floats:
        """``[steps]`` under a cost model, at each step's own batch and context."""
        found, rows = np.zeros(len(self.rows)), self.rows + self.late
        plain = self.place == PLAIN
        if plain.any():
            found[plain] = costs.autoregressive_ms(rows[plain], self.context[plain])
        widths = np.array([choice.verify_width for choice in offers.candidates.all])
        linear = np.array([choice.kind == "chain" for choice in offers.candidates.all])
        for part, price in (
            (~plain & ~linear[self.place], costs.round_ms),
            (~plain & linear[self.place], costs.chain_ms),
        ):
            if part.any():
                found[part] = price(widths[self.place[part]], rows[part], self.context[part])
        return found

    def tokens_per_s(self, offers: Offers, costs: StepCosts) -> float:
        """Tokens emitted by the steps over their time: of decoding, prefill apart."""
        return float(self.emitted.sum() / self.milliseconds(offers, costs).sum() * 1e3)

    def outcome(self, offers: Offers) -> Outcome:
        """Counts of every request, an autoregressive step being a round that drafts nothing."""
        traces = offers.traces
        requests = len(traces.starts)
        place = np.repeat(self.place, self.rows)
        drafted = np.where(place == PLAIN, 0, offers.drafted[self.anchor, np.maximum(place, 0)])
        kept = np.minimum(self.accepted, traces.ends[self.request] - self.anchor)
        counts = (np.bincount(self.request, each, requests) for each in (drafted, kept, self.accepted))
        made, taken, raw = (each.astype(np.int64) for each in counts)
        histogram = np.zeros((requests, traces.depth + 1), dtype=np.int64)
        np.add.at(histogram, (self.request, self.accepted), 1)
        return Outcome(np.bincount(self.request, minlength=requests), made, taken, raw, histogram)


def replay_policy(
    offers: Offers, policy: Policy, costs: StepCosts, batch_size: int, passes: int = 1, late: int = 0
) -> Steps:
    """What a policy would have done with ``batch_size`` requests in flight, taken ``passes`` times one after another.

    ``late``: steps that a row whose request has ended still takes part in.

    Raises:
        ConfigError: no row or no pass, or a policy that cannot choose among the candidates.
    """
    for name, number, least in (("batch_size", batch_size, 1), ("passes", passes, 1), ("late", late, 0)):
        if number < least:
            raise ConfigError(name, number, f"an integer >= {least}")
    control = policy.start(offers.candidates, costs, offers.traces.depth)
    looks = not isinstance(policy, Fixed)  # one that always does the same needs no offer
    nothing = Offer(0.0, np.zeros((0, 0)), np.zeros((0, 0, 0)))
    batch = _Batch(offers, batch_size, passes, late)
    steps, rows, place = [], [], PLAIN
    while batch.goes_on:
        anchors, ended = batch.anchor, batch.ended
        context = batch.context()
        accepted = np.zeros(len(anchors), dtype=np.int64)
        if len(anchors):
            place = PLAIN
            if control.drafts(len(anchors) + len(ended), context):
                told = offers.offer(anchors, control.factors) if looks else nothing
                place = offers.place(control.choose(replace(told, context=context, late=len(ended))))
                accepted = offers.accepted[anchors, place]
                if looks:
                    control.learn(offers.kept(anchors, place))
        rows.append((batch.request, anchors, accepted))
        steps.append((len(anchors), context, place, batch.advance(accepted), len(ended)))
    return _gathered(steps, rows)


class _Batch:
    """Which request holds which row, and the anchor it has come to.

    ``ended``: (committed tokens, steps to go) of the rows whose request has ended, and whose end is not seen yet.
    """

    def __init__(self, offers: Offers, size: int, passes: int, late: int) -> None:
        self._offers, self._late = offers, late
        self._starts, self._ends = offers.traces.starts, offers.traces.ends
        self._left = passes * len(self._starts)  # requests that wait
        self._size = min(size, self._left)
        self._waiting = chain.from_iterable(range(len(self._starts)) for _ in range(passes))
        self.request = np.zeros(0, dtype=np.int64)
        self.anchor = np.zeros(0, dtype=np.int64)
        self.ended: list[tuple[int, int]] = []
        self._refill()

    @property
    def goes_on(self) -> bool:
        """Whether anybody waits for a step: the last ones of rows that have ended bring nothing."""
        return bool(len(self.request) or self._left)

    def context(self) -> float:
        """Mean of the committed tokens of all rows."""
        own = int(self._offers.traces.context[self.anchor].sum()) + sum(tokens for tokens, _ in self.ended)
        return own / (len(self.anchor) + len(self.ended))

    def advance(self, accepted: Ints) -> int:
        """One step done: moves on, retires and refills. Tokens that came."""
        self.ended = [(tokens, steps - 1) for tokens, steps in self.ended if steps > 1]
        left = self._ends[self.request] - self.anchor
        emitted = np.minimum(accepted + 1, left)
        done = emitted == left
        if self._late:
            lengths = self._offers.traces.context[self.anchor[done]] + emitted[done]
            self.ended += [(tokens, self._late) for tokens in lengths.tolist()]
        self.anchor = self.anchor + emitted
        if done.any():
            self._retire()
        self._refill()
        return int(emitted.sum())

    def _refill(self) -> None:
        """A request may end with its first token: then its row is free again."""
        while len(self.request) + len(self.ended) < self._size:
            new = list(islice(self._waiting, self._size - len(self.request) - len(self.ended)))
            if not new:
                return
            self._left -= len(new)
            self.request = np.append(self.request, new)
            self.anchor = np.append(self.anchor, self._starts[new])
            self._retire()

    def _retire(self) -> None:
        self.request, self.anchor = self.request.copy(), self.anchor.copy()  # the old ones have been handed out
        for row in reversed(np.flatnonzero(self.anchor >= self._ends[self.request])):
            self.request[row], self.anchor[row] = self.request[-1], self.anchor[-1]
            self.request, self.anchor = self.request[:-1], self.anchor[:-1]


def _gathered(steps: list[Any], rows: list[Any]) -> Steps:
    if not steps:
        none = np.zeros(0, dtype=np.int64)
        return Steps(none, np.zeros(0), none, none, none, none, none, none)
    count, context, place, emitted, late = (np.array(each) for each in zip(*steps, strict=True))
    request, anchor, accepted = (np.concatenate(each) for each in zip(*rows, strict=True))
    return Steps(count, context, place, emitted, late, request, anchor, accepted)
