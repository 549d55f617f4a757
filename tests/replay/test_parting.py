"""How far scores must have moved for another length: against moves that were made, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import slow_round

from ddbench.decoding import Strategy
from ddbench.replay.parting import least_drift

DEPTH, K, MOVE = 4, 8, 0.3
SHAPES = (
    Strategy("dflash"),
    Strategy("dflash", depth=3),
    Strategy("ddtree", nodes=6),
    Strategy("ddtree", width=2, nodes=6),
    Strategy("ddtree", width=2, depth=2, nodes=6),
    Strategy("ddtree", nodes=6, force_spine=True),
    Strategy("ddtree", width=3, nodes=5, force_spine=True),
)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**9), shape=st.sampled_from(SHAPES))
def test_no_move_of_scores_does_with_less(seed: int, shape: Strategy) -> None:
    """Every candidate moved by up to ``MOVE``, sorted again: where the length changes, no more than that was needed."""
    rng = np.random.default_rng(seed)
    before = -rng.exponential(0.4, (DEPTH, K)).cumsum(axis=1).astype(np.float32)
    path = np.minimum(rng.geometric(0.5, DEPTH) - 1, K - 1)
    moved = np.minimum(before + rng.uniform(-MOVE, MOVE, (DEPTH, K)).astype(np.float32), 0.0)
    order = np.argsort(-moved, axis=1, kind="stable")
    ranks = np.array([int(np.flatnonzero(order[level] == path[level])[0]) for level in range(DEPTH)])
    replayed, _ = slow_round(before, path, shape)
    live, _ = slow_round(np.take_along_axis(moved, order, axis=1), ranks, shape)
    if shape.force_spine and (order[:, 0] != 0).any():
        return  # another spine leaves another budget: not bounded
    assert least_drift(shape, before, path, live, replayed) <= MOVE + 1e-5


def test_gaps_by_hand() -> None:
    scores = np.array([[-0.1, -2.5, -4.0], [-0.2, -1.9, -4.0]], dtype=np.float32)
    two = Strategy("ddtree", nodes=2)  # holds (0) at -0.1 and (0, 0) at -0.3; (0, 1) at -2.0 was left out
    assert least_drift(two, scores, np.array([0, 1]), 1, 1) == 0.0
    assert least_drift(two, scores, np.array([0, 1]), 2, 1) == pytest.approx(1.7 / 4)  # both of two levels
    assert least_drift(two, scores, np.array([0, 0]), 1, 2) == pytest.approx(1.7 / 5)  # a newcomer at depth 3 at most
    assert least_drift(Strategy("dflash"), scores, np.array([1, 0]), 1, 0) == pytest.approx(2.4 / 2)
    assert least_drift(Strategy("dflash"), scores, np.array([0, 0]), 1, 2) == pytest.approx(1.7 / 2)
    assert least_drift(two, scores, np.array([0, 0]), 3, 2) == float("inf")  # deeper than anything drafted
