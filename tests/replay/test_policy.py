"""Policies that choose anew each round."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from made import random_traces, same, slow_round

from ddbench.decoding import Strategy
from ddbench.errors import ConfigError
from ddbench.replay import Fixed, Rounds, TraceSet, replay, replay_policy

ARMS = (
    Strategy("autoregressive"),
    Strategy("dflash"),
    Strategy("dflash", depth=2),
    Strategy("ddtree", nodes=2),
    Strategy("ddtree", nodes=6),
    Strategy("ddtree", 2, 3, 5, force_spine=True),
)


@dataclass
class Costly:
    """Takes the arm with the most expected tokens for its nodes; remembers what it saw."""

    arms: tuple[Strategy, ...] = ARMS
    seen: list[Rounds] = field(default_factory=list)

    def choose(self, rounds: Rounds) -> np.ndarray:
        self.seen.append(rounds)
        chosen: np.ndarray = ((1 + rounds.expected) / (2.0 + rounds.drafted)).argmax(axis=0)
        return chosen


def by_hand(traces: TraceSet, policy: Costly) -> list[tuple[int, ...]]:
    """Rounds, drafted, kept and raw accepted tokens, a request: one after another, node by node."""
    rows = []
    for each in traces.traces:
        at, counts = 0, [0, 0, 0, 0]
        while at < each.anchors:
            lp, ranks = each.log_probs[at], each.ranks[at]
            expected = [expected_by_hand(lp, arm) for arm in policy.arms]
            drafted = [slow_round(lp, ranks, arm)[1] for arm in policy.arms]
            arm = int(np.argmax([(1 + gain) / (2.0 + nodes) for gain, nodes in zip(expected, drafted, strict=True)]))
            accepted, nodes = slow_round(lp, ranks, policy.arms[arm])
            left = each.anchors - at
            kept = min(accepted, left)
            counts = [a + b for a, b in zip(counts, (1, nodes, kept, accepted), strict=True)]
            at += accepted + 1
        rows.append(tuple(counts))
    return rows


def expected_by_hand(log_probs: np.ndarray, arm: Strategy) -> float:
    """Sum of the probabilities of the arm's nodes: of each, the chance that a draw of the drafter begins with it."""
    from itertools import product

    if arm.name == "autoregressive":
        return 0.0
    depth, k = log_probs.shape
    found = []
    for length in range(1, (arm.depth or depth) + 1):
        for ranks in product(range(k if arm.name == "ddtree" else 1), repeat=length):
            if arm.width is None or max(ranks) < arm.width:
                spine = arm.force_spine and not any(ranks)
                found.append((not spine, -sum(log_probs[d, rank] for d, rank in enumerate(ranks)), ranks))
    nodes = len(found) if arm.name == "dflash" else arm.nodes or depth
    return float(sum(np.exp(-cost) for _, cost, _ in sorted(found)[:nodes]))


def test_a_policy_is_replayed_round_by_round() -> None:
    traces, policy = random_traces(5, requests=6), Costly()
    outcome, taken = replay_policy(traces, policy)
    numbers = np.stack([outcome.rounds, outcome.drafted, outcome.accepted, outcome.accepted_raw], axis=1)
    assert numbers.tolist() == [list(row) for row in by_hand(traces, policy)]
    assert (taken.sum(axis=1) == outcome.rounds).all()
    assert (taken.sum(axis=0) > 0).sum() >= 3  # it did choose
    assert [rounds.number for rounds in policy.seen] == list(range(len(policy.seen)))
    assert all((rounds.context >= 3).all() for rounds in policy.seen)


@pytest.mark.parametrize("arm", ARMS[1:], ids=str)
def test_a_policy_that_never_changes_is_the_shape(arm: Strategy) -> None:
    traces = random_traces(6, requests=4, step=0.5)
    outcome, _ = replay_policy(traces, Fixed(arm))
    assert same(outcome, replay(traces, [arm])[0])


def test_a_step_without_drafts_is_a_round_of_one_token() -> None:
    traces = random_traces(8, requests=3)
    outcome, _ = replay_policy(traces, Fixed(Strategy("autoregressive")))
    assert outcome.rounds.tolist() == [each.anchors for each in traces.traces]
    assert outcome.accepted_raw.sum() == outcome.drafted.sum() == 0


def test_policies_are_held_to_their_arms() -> None:
    class Wild(Costly):
        def choose(self, rounds: Rounds) -> np.ndarray:
            return np.full(len(rounds.request), 99)

    traces = random_traces(5)
    with pytest.raises(ConfigError, match="one of 6 arms"):
        replay_policy(traces, Wild())
    with pytest.raises(ConfigError, match="EAGLE"):
        replay_policy(traces, Fixed(Strategy("eagle", depth=2)))
