"""What a policy is told of a build, against sums over nodes written out, and on a device as on the host."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddbench.adaptive import (
    OFF,
    ON,
    Candidates,
    expectation,
    expectation_on_device,
    kept_of,
    on_spine,
    usual_candidates,
)
from ddbench.errors import ConfigError
from ddbench.tree import Tree, build_tree, build_tree_heap


def log_probs_of(seed: int, rows: int, depth: int, k: int, step: float | None = None) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    found = -rng.exponential(0.7, (rows, depth, k)).cumsum(axis=2)
    if step is not None:
        found = np.round(found / step) * step  # many equal sums
    return torch.from_numpy(-np.sort(-found, axis=2).astype(np.float32))


def slow(log_probs: torch.Tensor, candidates: Candidates, factors: np.ndarray) -> tuple[list[list[float]], np.ndarray]:
    """Each budget's tree by the heap, its nodes one by one, walked up to the root to see whether they are the chain."""
    rows, depth, _ = log_probs.shape
    expected = [[0.0] * len(candidates.all) for _ in range(rows)]
    mass = np.zeros((len(candidates.all), 2, depth))
    for place, choice in enumerate(candidates.all):
        for row in range(rows):
            if choice.kind == "chain":
                nodes = [(ON, d, float(log_probs[row, : d + 1, 0].sum())) for d in range(choice.nodes)]
            else:
                tree = build_tree_heap(log_probs[row : row + 1], choice.nodes)
                nodes = [node(tree, i) for i in range(int(tree.counts()[0]))]
            for side, d, score in nodes:
                expected[row][place] += math.exp(score) * factors[side, d]
                mass[place, side, d] += math.exp(score)
    return expected, mass


def node(tree: Tree, index: int) -> tuple[int, int, float]:
    score, depth = float(tree.scores[0, index]), int(tree.depths[0, index])
    here, side = index, ON
    while here >= 0:
        side = side if int(tree.ranks[0, here]) == 0 else OFF
        here = int(tree.parents[0, here])
    return side, depth - 1, score


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 3),
    depth=st.integers(1, 5),
    k=st.integers(1, 6),
    step=st.sampled_from([None, 0.5]),
)
def test_expected_tokens_are_the_sum_over_the_nodes(
    seed: int, rows: int, depth: int, k: int, step: float | None
) -> None:
    log_probs = log_probs_of(seed, rows, depth, k, step)
    candidates = Candidates((1, 3, 7), tuple(sorted({1, depth})))
    factors = np.random.default_rng(seed).uniform(0.5, 1.5, (2, depth))
    tree = build_tree(log_probs, candidates.most)
    spine = on_spine(tree)
    chain = np.add.accumulate(log_probs[:, :, 0].numpy(), axis=1)
    told = tree.scores.numpy(), tree.depths.numpy(), spine.numpy(), chain
    expected, mass = expectation(*told, candidates, factors)
    by_hand, mass_by_hand = slow(log_probs, candidates, factors)
    np.testing.assert_allclose(expected, by_hand, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mass, mass_by_hand, rtol=1e-5, atol=1e-6)

    tensors = tree.scores, tree.depths, spine, torch.from_numpy(chain)
    there, mass_there = expectation_on_device(*tensors, candidates, torch.from_numpy(factors).float())
    np.testing.assert_allclose(there.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mass_there.numpy(), mass, rtol=1e-4, atol=1e-5)


def test_a_build_without_trees_or_without_chains() -> None:
    log_probs = log_probs_of(0, 2, 4, 6)
    tree = build_tree(log_probs, 5)
    chain = np.add.accumulate(log_probs[:, :, 0].numpy(), axis=1)
    told = tree.scores.numpy(), tree.depths.numpy(), on_spine(tree).numpy(), chain
    factors = np.ones((2, 4))
    both, _ = expectation(*told, Candidates((2, 5), (3,)), factors)
    trees, _ = expectation(*told, Candidates((2, 5)), factors)
    chains, _ = expectation(*told, Candidates((), (3,)), factors)
    assert np.array_equal(both, np.concatenate([trees, chains], axis=1))


def test_kept_tells_the_chain_from_what_left_it() -> None:
    kept = kept_of([3, 0, 2], [1, 0, 2], 4)
    assert kept[ON].tolist() == [2, 1, 0, 0]
    assert kept[OFF].tolist() == [0, 1, 1, 0]
    assert kept.sum() == 5


def test_usual_candidates() -> None:
    found = usual_candidates(40, 15)
    assert found.trees == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40)
    assert found.chains == (3, 7, 15)
    assert [choice.verify_width for choice in found.all] == [2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 41, 4, 8, 16]
    assert usual_candidates(1, 1) == Candidates((1,), (1,))
    assert usual_candidates(2, 6).chains == (3, 6)


@pytest.mark.parametrize("numbers", [(2, 2), (3, 1), (0, 4), (-1,)])
def test_candidates_increase(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="increasing integers >= 1"):
        Candidates(numbers)
    with pytest.raises(ConfigError, match="increasing integers >= 1"):
        Candidates((1,), numbers)


def test_candidates_are_some() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Candidates(())
