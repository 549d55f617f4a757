"""Policies replayed for a batch that shares its choices, against a slow batch of lists; and the oracle above them."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made import random_traces, same, slow_round

from ddbench.adaptive import (
    CaDDTree,
    Candidates,
    Choice,
    Control,
    CostOptimal,
    Fixed,
    Offer,
    Policy,
    StepCosts,
    kept_of,
)
from ddbench.decoding import Strategy
from ddbench.errors import ConfigError
from ddbench.replay import PLAIN, Offers, TraceSet, bound_tokens_per_s, least_ms, replay, replay_policy
from ddbench.tree import build_tree_heap

CANDIDATES = Candidates((1, 2, 4, 6), (2, 4))
PLAIN_CHOICE = Choice("autoregressive", 0)


@dataclass(frozen=True)
class Costs:
    """Milliseconds, linear in everything."""

    draft: float = 1.0
    base: float = 2.0
    token: float = 0.1
    read: float = 0.01

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return 0.2 + self.chain_ms(verify_width, batch, context)

    def chain_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self.draft + self.base + self.token * np.asarray(verify_width) * batch + self.read * batch * context

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        return self.base + self.token * np.asarray(batch) + self.read * np.asarray(batch) * context


COSTS = [Costs(), Costs(token=0.8), Costs(draft=6.0)]
POLICIES: list[Policy] = [
    CostOptimal(trial=4, looking=0.2),
    CostOptimal(calibrated=False),
    CaDDTree(),
    Fixed(Choice("tree", 4)),
    Fixed(Choice("chain", 2)),
    Fixed(PLAIN_CHOICE),
]


def slow_steps(traces: TraceSet, policy: Policy, costs: StepCosts, size: int, late: int) -> list[tuple[Any, ...]]:
    """Each step's choice, its rows (request, anchor, accepted) and the lengths of rows that ended within ``late``
    steps: lists, a queue, and one heap a tree."""
    control = policy.start(CANDIDATES, costs, traces.depth)
    waiting = deque(range(len(traces.traces)))
    active: list[list[int]] = []
    ended: list[tuple[int, int]] = []  # step of the end, length
    found: list[tuple[Any, ...]] = []
    while True:
        gone = [length for step, length in ended if len(found) <= step + late]
        while len(active) + len(gone) < size and waiting:
            active += [[waiting.popleft(), 0] for _ in range(min(size - len(active) - len(gone), len(waiting)))]
            retire(traces, active)
        if not active and not waiting:
            return found
        if not active:
            found.append((found[-1][0], [], gone))
            continue
        choice, rows_here = PLAIN_CHOICE, len(active) + len(gone)
        mean = (context(traces, active) * len(active) + sum(gone)) / rows_here
        if control.drafts(rows_here, mean):
            choice = control.choose(replace(offer(traces, active, control), context=mean, late=len(gone)))
        shape = {"autoregressive": Strategy("autoregressive"), "chain": Strategy("dflash", depth=choice.nodes or None)}
        strategy = shape.get(choice.kind) or Strategy("ddtree", nodes=choice.nodes)
        rows = []
        for request, anchor in active:
            each = traces.traces[request]
            rows.append((request, anchor, slow_round(each.log_probs[anchor], each.ranks[anchor], strategy)[0]))
        if choice != PLAIN_CHOICE:
            ranks = [traces.traces[request].ranks[anchor] for request, anchor, _ in rows]
            lead = [next((d for d, rank in enumerate(each) if rank != 0), len(each)) for each in ranks]
            accepted = [row[2] for row in rows]
            control.learn(kept_of(accepted, [min(a, b) for a, b in zip(accepted, lead, strict=True)], traces.depth))
        found.append((choice, rows, gone))
        for row, (_, _, accepted_) in zip(active, rows, strict=True):
            row[1] += accepted_ + 1
            each = traces.traces[row[0]]
            if row[1] >= each.anchors:
                ended.append((len(found) - 1, each.prompt_tokens + each.anchors))
        retire(traces, active)


def retire(traces: TraceSet, active: list[list[int]]) -> None:
    for row in reversed(range(len(active))):
        if active[row][1] >= traces.traces[active[row][0]].anchors:
            active[row] = active[-1]
            active.pop()


def context(traces: TraceSet, active: list[list[int]]) -> float:
    return sum(traces.traces[request].prompt_tokens + anchor for request, anchor in active) / len(active)


def offer(traces: TraceSet, active: list[list[int]], control: Control) -> Offer:
    expected, mass = [], np.zeros((len(CANDIDATES.all), 2, traces.depth))
    for request, anchor in active:
        log_probs = traces.traces[request].log_probs[anchor]
        row = []
        for place, choice in enumerate(CANDIDATES.all):
            own = np.zeros((2, traces.depth))
            if choice.kind == "chain":
                own[1, : choice.nodes] = np.exp(np.add.accumulate(log_probs[:, 0])[: choice.nodes].astype(float))
            else:
                tree = build_tree_heap(torch.from_numpy(log_probs[None]), choice.nodes)
                on: dict[int, bool] = {-1: True}
                for i in range(int(tree.counts()[0])):
                    on[i] = on[int(tree.parents[0, i])] and int(tree.ranks[0, i]) == 0
                    own[int(on[i]), int(tree.depths[0, i]) - 1] += math.exp(float(tree.scores[0, i]))
            mass[place] += own
            row.append(float((own * control.factors).sum()))
        expected.append(row)
    return Offer(context(traces, active), np.array(expected), mass)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 5),
    policy=st.sampled_from(POLICIES),
    costs=st.sampled_from(COSTS),
    step=st.sampled_from([None, 0.5]),
    late=st.integers(0, 2),
)
def test_a_policy_is_replayed_step_by_step(
    seed: int, size: int, policy: Policy, costs: Costs, step: float | None, late: int
) -> None:
    traces = random_traces(seed, requests=6, step=step)
    offers = Offers.of(traces, CANDIDATES)
    steps = replay_policy(offers, policy, costs, size, late=late)
    wanted = slow_steps(traces, policy, costs, size, late)
    starts = np.concatenate([[0], steps.rows.cumsum()])
    found = [
        (
            PLAIN_CHOICE if place == PLAIN else CANDIDATES.all[place],
            [
                (int(request), int(anchor - traces.starts[request]), int(accepted))
                for request, anchor, accepted in zip(
                    *(part[a:b] for part in (steps.request, steps.anchor, steps.accepted)), strict=True
                )
            ],
        )
        for place, a, b in zip(steps.place, starts, starts[1:], strict=False)
    ]
    assert found == [(choice, rows) for choice, rows, _ in wanted]
    assert steps.emitted.sum() == traces.anchors
    assert steps.late.tolist() == [len(gone) for _, _, gone in wanted]
    assert steps.milliseconds(offers, costs).tolist() == pytest.approx([paid(traces, costs, *each) for each in wanted])


def paid(traces: TraceSet, costs: StepCosts, choice: Choice, rows: list[Any], gone: list[int]) -> float:
    """Of one step, rows that have ended included."""
    lengths = [traces.traces[request].prompt_tokens + anchor for request, anchor, _ in rows] + gone
    where = len(lengths), sum(lengths) / len(lengths)
    if choice == PLAIN_CHOICE:
        return float(costs.autoregressive_ms(*where))
    return float((costs.chain_ms if choice.kind == "chain" else costs.round_ms)(choice.verify_width, *where))


def test_one_place_and_a_late_end_cost_a_step_a_request() -> None:
    """All requests but the last pay one step more, of the same kind."""
    traces = random_traces(6, requests=7)
    offers, costs = Offers.of(traces, CANDIDATES), Costs(read=0.0)
    asked = sum(each.anchors > 0 for each in traces.traces)
    last = traces.traces[-1].anchors > 0
    for choice in (Choice("tree", 4), PLAIN_CHOICE):
        once, more = (replay_policy(offers, Fixed(choice), costs, 1, late=late) for late in (0, 1))
        one = once.milliseconds(offers, costs)[0]
        extra = more.milliseconds(offers, costs).sum() - once.milliseconds(offers, costs).sum()
        assert extra == pytest.approx((asked - last) * one)
        assert more.outcome(offers).rounds.tolist() == once.outcome(offers).rounds.tolist()
    with pytest.raises(ConfigError, match="late=-1"):
        replay_policy(offers, Fixed(PLAIN_CHOICE), costs, 1, late=-1)


def test_policies_do_choose() -> None:
    traces = random_traces(5, requests=40)
    offers = Offers.of(traces, CANDIDATES)
    places = {place for costs in COSTS for place in replay_policy(offers, POLICIES[0], costs, 2).place.tolist()}
    assert len(places) >= 5
    assert PLAIN in places


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("choice", [*CANDIDATES.all, PLAIN_CHOICE], ids=str)
def test_a_policy_that_never_changes_is_the_shape(choice: Choice, size: int) -> None:
    """Counts of a request hold for every batch size."""
    traces = random_traces(6, requests=7, step=0.5)
    offers = Offers.of(traces, CANDIDATES)
    outcome = replay_policy(offers, Fixed(choice), COSTS[0], size).outcome(offers)
    if choice == PLAIN_CHOICE:
        assert outcome.rounds.tolist() == [each.anchors for each in traces.traces]
        assert outcome.accepted_raw.sum() == outcome.drafted.sum() == 0
        return
    shape = Strategy("dflash", depth=choice.nodes) if choice.kind == "chain" else Strategy("ddtree", nodes=choice.nodes)
    assert same(outcome, replay(traces, [shape])[0])


def test_the_time_of_a_run_is_the_sum_of_its_steps() -> None:
    traces = random_traces(8, requests=9)
    offers = Offers.of(traces, CANDIDATES)
    costs = Costs(draft=6.0)
    steps = replay_policy(offers, CostOptimal(trial=4, looking=0.2), costs, 3)
    total = 0.0
    for place, rows, at in zip(steps.place.tolist(), steps.rows.tolist(), steps.context.tolist(), strict=True):
        choice = PLAIN_CHOICE if place == PLAIN else CANDIDATES.all[place]
        if choice.kind == "autoregressive":
            total += float(costs.autoregressive_ms(rows, at))
        else:
            price = costs.chain_ms if choice.kind == "chain" else costs.round_ms
            total += float(price(choice.nodes + 1, rows, at))
    assert len(set(steps.place.tolist())) > 1
    assert steps.tokens_per_s(offers, costs) == pytest.approx(traces.anchors / total * 1e3)


def test_passes_take_the_requests_again() -> None:
    traces = random_traces(8, requests=5)
    offers = Offers.of(traces, CANDIDATES)
    once, twice = (replay_policy(offers, Fixed(Choice("tree", 4)), COSTS[0], 2, passes) for passes in (1, 2))
    assert twice.emitted.sum() == 2 * once.emitted.sum() == 2 * traces.anchors
    assert twice.rows.sum() == 2 * once.rows.sum()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 4), costs=st.sampled_from(COSTS))
def test_no_policy_is_faster_than_the_oracle(seed: int, size: int, costs: Costs) -> None:
    traces = random_traces(seed, requests=5)
    if traces.anchors == 0:
        return
    offers = Offers.of(traces, CANDIDATES)
    bound = bound_tokens_per_s(offers, costs, size)
    fixed = [Fixed(choice) for choice in (*CANDIDATES.all, PLAIN_CHOICE)]
    for policy in (*fixed, *POLICIES):
        assert replay_policy(offers, policy, costs, size).tokens_per_s(offers, costs) <= bound * (1 + 1e-9)


def test_for_one_row_the_oracle_is_the_best_of_all_ways_through_a_text() -> None:
    """Every sequence of choices tried, on texts of a few tokens."""
    costs, places = Costs(token=0.5), range(len(CANDIDATES.all) + 1)
    traces = random_traces(12, requests=6)
    short = [r for r, each in enumerate(traces.traces) if 1 <= each.anchors <= 4]
    assert len(short) >= 2
    offers = Offers.of(traces, CANDIDATES)
    found = least_ms(offers, costs, 1)
    for request in short:
        start, anchors = int(traces.starts[request]), traces.traces[request].anchors
        best = math.inf
        for way in itertools.product(places, repeat=anchors):
            at, total = 0, 0.0
            for place in way:
                if at >= anchors:
                    break
                here = 3 + at
                if place == len(CANDIDATES.all):
                    total, at = total + float(costs.autoregressive_ms(1, here)), at + 1
                    continue
                choice = CANDIDATES.all[place]
                price = costs.chain_ms if choice.kind == "chain" else costs.round_ms
                total += float(price(choice.verify_width, 1, here))
                at += int(offers.accepted[start + at, place]) + 1
            best = min(best, total)
        assert found[request] == pytest.approx(best)


def test_what_cannot_be_replayed_is_refused() -> None:
    traces = random_traces(5)
    with pytest.raises(ConfigError, match=r"at most 6, the candidates recorded"):
        Offers.of(traces, Candidates((7,)))
    with pytest.raises(ConfigError, match="at most 4, the tokens that the drafter proposes"):
        Offers.of(traces, Candidates((2,), (5,)))
    offers = Offers.of(traces, CANDIDATES)
    with pytest.raises(ConfigError, match="batch_size=0"):
        replay_policy(offers, POLICIES[0], COSTS[0], 0)
    with pytest.raises(ConfigError, match="passes=0"):
        replay_policy(offers, POLICIES[0], COSTS[0], 1, 0)
