"""What each policy chooses, against its rule written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_costs import FLAT, MIDDLE, STEEP, Made

from ddbench.adaptive import POLICIES, CaDDTree, Candidates, Choice, Control, CostOptimal, Fixed, Offer, policy_of
from ddbench.errors import ConfigError
from ddbench.records import POLICIES as KNOWN

DEPTH = 4
CANDIDATES = Candidates((1, 2, 4, 8, 16), (2, 4))


def offer_of(expected: np.ndarray, context: float = 100.0) -> Offer:
    """``expected`` [rows, candidates]; of its mass, all is at depth 1 on the chain."""
    mass = np.zeros((expected.shape[1], 2, DEPTH))
    mass[:, 1, 0] = expected.sum(axis=0)
    return Offer(context, expected, mass)


def random_expected(seed: int, rows: int) -> np.ndarray:
    """Rises with the budget, ever less; a chain's is below the tree's of as many nodes."""
    rng = np.random.default_rng(seed)
    trees = np.sort(rng.gamma(1.0, 1.5, (rows, 5)), axis=1)
    return np.concatenate([trees, trees[:, 1:3] * rng.uniform(0.5, 1.0, (rows, 2))], axis=1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 9), costs=st.sampled_from([FLAT, STEEP, MIDDLE]))
def test_cost_optimal_takes_the_largest_geometric_mean_of_tokens_a_millisecond(
    seed: int, rows: int, costs: Made
) -> None:
    expected = random_expected(seed, rows)
    control = CostOptimal().start(CANDIDATES, costs, DEPTH)
    chosen = control.choose(offer_of(expected))
    rates = {}
    for place, choice in enumerate(CANDIDATES.all):
        price = costs.round_ms if choice.kind == "tree" else costs.chain_ms
        milliseconds = float(price(choice.verify_width, rows, 96))  # the price of a context of 100: a multiple of 32
        rates[choice] = math.prod((1 + each) / milliseconds for each in expected[:, place]) ** (1 / rows)
    assert rates[chosen] == pytest.approx(max(rates.values()), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 5), costs=st.sampled_from([FLAT, STEEP, MIDDLE]))
def test_caddtree_stops_where_its_rate_no_longer_rises(seed: int, rows: int, costs: Made) -> None:
    expected = random_expected(seed, rows)
    chosen = CaDDTree().start(CANDIDATES, costs, DEPTH).choose(offer_of(expected))
    theta = [
        (rows + sum(expected[row][place] for row in range(rows))) / float(costs.round_ms(nodes + 1, rows, 96))
        for place, nodes in enumerate(CANDIDATES.trees)
    ]
    stop = 0
    while stop + 1 < len(theta) and theta[stop + 1] > theta[stop]:
        stop += 1
    assert chosen == Choice("tree", CANDIDATES.trees[stop])


def test_caddtree_grows_node_by_node_where_every_budget_is_offered() -> None:
    """Independent tokens at depth 1 with probabilities 1/2, 1/4, ...; draft 1 ms, verify 0.1 ms a node beyond."""
    candidates = Candidates(tuple(range(1, 9)))
    costs = Made(draft=1.0, build=0.0, base=0.0, knee=0.0, slope=0.098)
    gains = np.cumsum([0.5**n for n in range(1, 9)])
    chosen = CaDDTree().start(candidates, costs, DEPTH).choose(offer_of(gains[None]))
    # theta = (1 + gain) / (1 + 0.1 (n + 1)): 1.25, 1.346, 1.339, ...
    assert chosen == Choice("tree", 2)


class Holes(Made):
    """Without prices at some widths, as a cost file that was not measured there."""

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return np.where(np.isin(verify_width, (2, 3, 9)), np.inf, super().round_ms(verify_width, batch, context))


@pytest.mark.parametrize("policy", [CaDDTree(), CostOptimal()])
def test_what_was_not_measured_is_passed_over(policy: CaDDTree | CostOptimal) -> None:
    """The two narrowest trees and one in the middle have no price; the drafter is right about everything."""
    expected = np.array([[1.0, 2.0, 4.0, 8.0, 16.0, 2.0, 4.0]])
    candidates = Candidates(CANDIDATES.trees, (), autoregressive=False)
    control = policy.start(candidates, Holes(draft=1.0, base=9.0), DEPTH)
    assert control.choose(offer_of(expected[:, :5])) == Choice("tree", 16)
    steep = policy.start(candidates, Holes(draft=1.0, base=1.0, knee=0.0, slope=9.0), DEPTH)
    assert steep.choose(offer_of(np.array([[0.9, 1.0, 1.1, 1.2, 1.3]]))) == Choice("tree", 4)  # the least with a price


def test_caddtree_needs_one_price() -> None:
    control = CaDDTree().start(Candidates((1, 2, 8)), Holes(), DEPTH)
    with pytest.raises(ConfigError, match="a cost of some tree at a batch of 1"):
        control.choose(offer_of(np.array([[0.5, 0.6, 0.7]])))


def test_a_fixed_policy_is_held_to_the_candidates() -> None:
    assert Fixed(Choice("chain", 4)).start(CANDIDATES, FLAT, DEPTH).choose(offer_of(random_expected(0, 2))).nodes == 4
    assert not Fixed(Choice("autoregressive", 0)).start(CANDIDATES, FLAT, DEPTH).drafts(1, 1.0)
    with pytest.raises(ConfigError, match="fixed:tree:5"):
        Fixed(Choice("tree", 5)).start(CANDIDATES, FLAT, DEPTH)
    with pytest.raises(ConfigError, match="fixed:autoregressive:0"):
        Fixed(Choice("autoregressive", 0)).start(Candidates((1,), (), False), FLAT, DEPTH)
    with pytest.raises(ConfigError, match="at least one tree"):
        CaDDTree().start(Candidates((), (3,)), FLAT, DEPTH)


def test_names() -> None:
    assert policy_of("cost_optimal") == CostOptimal()
    assert policy_of("caddtree") == CaDDTree()
    assert tuple(POLICIES) == KNOWN  # what configurations may say, where nothing of this is imported
    with pytest.raises(ConfigError, match="one of cost_optimal, cost_optimal_uncalibrated, caddtree"):
        policy_of("clever")


def steps_that_draft(control: Control, steps: int, expected: np.ndarray) -> list[bool]:
    found = []
    for _ in range(steps):
        drafts = control.drafts(len(expected), 64.0)
        found.append(drafts)
        if drafts:
            control.choose(offer_of(expected))
            control.learn(np.zeros((2, DEPTH), dtype=np.int64))
    return found


def test_a_drafter_that_offers_nothing_is_left_alone_and_asked_now_and_then() -> None:
    """Looking costs at most the share of time that it may: each drafting round beyond the trial, its lost time."""
    nothing = np.zeros((1, len(CANDIDATES.all)))
    rule = CostOptimal(calibrated=False, first_look=10**9)
    drafted = steps_that_draft(rule.start(CANDIDATES, MIDDLE, DEPTH), 4000, nothing)
    assert drafted[: rule.trial] == [True] * rule.trial
    looks = drafted[rule.trial :]
    assert 0 < sum(looks) < 40
    plain = float(MIDDLE.autoregressive_ms(1, 64))
    lost = float(MIDDLE.chain_ms(3, 1, 64)) - plain  # the best candidate, the chain of two, brings one token
    assert sum(looks) * lost <= rule.looking * plain * len(looks)


def test_it_is_asked_soon_at_first_and_ever_more_seldom() -> None:
    """One step of many rows is enough of a trial; then 32, 64, 128, ... steps after the last look, at any cost."""
    nothing = np.zeros((32, len(CANDIDATES.all)))
    rule = CostOptimal(calibrated=False, looking=0.0)
    drafted = steps_that_draft(rule.start(CANDIDATES, MIDDLE, DEPTH), 1000, nothing)
    looks = np.flatnonzero(drafted)
    assert rule.first_look == 32
    assert (np.diff(looks) - 1).tolist() == [32, 64, 128, 256, 512]


def test_texts_that_only_begin_badly_are_drafted_after_the_first_look() -> None:
    badly, well = np.zeros((64, len(CANDIDATES.all))), np.full((64, len(CANDIDATES.all)), 7.0)
    rule = CostOptimal(calibrated=False)
    control = rule.start(CANDIDATES, MIDDLE, DEPTH)
    assert steps_that_draft(control, 1, badly) == [True]
    assert steps_that_draft(control, 200, well) == [False] * rule.first_look + [True] * (200 - rule.first_look)


def test_few_rounds_that_differ_decide_nothing() -> None:
    """Half of the rows accept nothing, half 2.9 tokens: a mean log of 0.68 where log 2 is the price, 1.3 % too little.

    Two standard errors of 8 rows' mean are 0.5, of 256 still 0.09: the drafter is believed to lose after those alone.
    """
    even = Made(draft=6.5, build=0.0, base=6.5, knee=1e9, slope=0.0)  # a round costs two autoregressive steps
    mixed = np.repeat([0.0, 2.9], 4)[:, None].repeat(len(CANDIDATES.all), axis=1)
    patient = CostOptimal(calibrated=False)
    drafted = steps_that_draft(patient.start(CANDIDATES, even, DEPTH), 100, mixed)
    assert all(drafted[: int(patient.horizon) // 8])
    assert sum(drafted[int(patient.horizon) // 8 :]) < 10
    hasty = CostOptimal(calibrated=False, doubt=0.0)
    assert not steps_that_draft(hasty.start(CANDIDATES, even, DEPTH), 100, mixed)[hasty.trial // 8]


def test_a_drafter_that_comes_back_is_used_again() -> None:
    rule = CostOptimal(calibrated=False)
    control = rule.start(CANDIDATES, MIDDLE, DEPTH)
    nothing, much = np.zeros((8, len(CANDIDATES.all))), np.full((8, len(CANDIDATES.all)), 3.0)
    assert not steps_that_draft(control, 200, nothing)[-1]
    assert all(steps_that_draft(control, 3000, much)[-500:])


def test_a_drafter_that_wins_is_never_left() -> None:
    assert all(steps_that_draft(CostOptimal().start(CANDIDATES, FLAT, DEPTH), 300, np.full((1, 7), 2.0)))
    without = Candidates((1, 4), (), autoregressive=False)
    assert all(steps_that_draft(CostOptimal().start(without, STEEP, DEPTH), 300, np.zeros((1, 2))))


def test_a_control_may_learn_late() -> None:
    """Of every choice once and in their order, though others have been made since."""
    rng = np.random.default_rng(3)
    offers = [offer_of(random_expected(seed, 2)) for seed in range(6)]
    kept = [rng.integers(0, 3, (2, DEPTH)) for _ in offers]
    prompt, late = (CostOptimal().start(CANDIDATES, FLAT, DEPTH) for _ in range(2))
    for offer, each in zip(offers, kept, strict=True):
        prompt.choose(offer)
        prompt.learn(each)
    for offer in offers:
        late.choose(offer)
    for each in kept:
        late.learn(each)
    assert np.array_equal(prompt.factors, late.factors)
    assert not np.allclose(prompt.factors, 1.0)
