"""The walk against an obvious one, and what it keeps of a tree against what it keeps of the chain."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from trees import KINDS, draft, paths

from ddbench.errors import ConfigError
from ddbench.tree import Tree, build_tree, draw, filtered_probs, greedy, keyed_uniforms, sample_and_match, walk

settings.register_profile("tree", deadline=None, derandomize=True, database=None)
settings.load_profile("tree")


def obvious_walk(parents: list[int], tokens: list[int], chosen: list[int]) -> tuple[list[int], int]:
    rows, token = [0], chosen[0]
    while True:
        children = [n for n, parent in enumerate(parents) if parent == rows[-1] - 1 and tokens[n] == token]
        if not children:
            return rows, token
        rows.append(children[0] + 1)
        token = chosen[rows[-1]]


@given(st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(5, 40), st.booleans(), st.integers(1, 6))
@settings(max_examples=150)
def test_walk_equals_the_obvious_one(kind: str, seed: int, nodes: int, spine: bool, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tree = build_tree(draft(4, 5, 3, kind, seed), nodes, force_spine=spine)
    # A small vocabulary makes long walks, and siblings with the same token, of which the first counts.
    tokens = torch.randint(0, vocabulary, tree.parents.shape, generator=generator).masked_fill(~tree.valid, -1)
    chosen = torch.randint(0, vocabulary, (4, nodes + 1), generator=generator)
    for max_depth in (None, 5):
        kept = walk(tree.parents, tokens, chosen, max_depth)
        assert kept.indices.shape == (4, 1 + (nodes if max_depth is None else 5))
        for b in range(4):
            rows, bonus = obvious_walk(tree.parents[b].tolist(), tokens[b].tolist(), chosen[b].tolist())
            assert kept.accepted[b] == len(rows) - 1
            assert kept.bonus[b] == bonus
            assert kept.indices[b].tolist() == rows + [-1] * (kept.indices.shape[1] - len(rows))


def test_greedy_is_the_walk_of_the_argmax() -> None:
    tree = build_tree(draft(2, 4, 3, "smooth", 0), 20)
    tokens = tree.token_ids(torch.arange(3).expand(2, 4, 3))
    logits = torch.randn(2, 21, 5, generator=torch.Generator().manual_seed(1))
    found, expected = greedy(tree.parents, tokens, logits), walk(tree.parents, tokens, logits.argmax(-1))
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(found.bonus, expected.bonus)


def target_choices(tree: Tree, tokens: Tensor, likes_the_spine: float, seed: int) -> Tensor:
    """A target's greedy token after every row: a function of the tokens of its path, whatever tree they stand in."""
    chosen = torch.zeros(tokens.shape[0], tokens.shape[1] + 1, dtype=torch.int64)
    for b in range(tokens.shape[0]):
        for row, path in enumerate([(), *paths(tree, b)]):
            choice = random.Random(f"{seed} {b} {path}")
            chosen[b, row] = 0 if choice.random() < likes_the_spine else choice.randrange(6)
    return chosen


@given(
    st.sampled_from(KINDS),
    st.integers(0, 10**6),
    st.integers(5, 60),
    st.sampled_from([None, 1, 2]),
    st.floats(0, 1),
)
@settings(max_examples=150)
def test_a_tree_with_its_spine_never_accepts_less_than_the_chain(
    kind: str, seed: int, nodes: int, width: int | None, likes_the_spine: float
) -> None:
    log_probs = draft(4, 5, 6, kind, seed)
    top_ids = torch.arange(6).expand(4, 5, 6)
    accepted = []
    for tree in (
        build_tree(log_probs, 5, width=1),
        build_tree(log_probs, nodes, width=width, force_spine=True),
    ):
        tokens = tree.token_ids(top_ids)
        accepted.append(walk(tree.parents, tokens, target_choices(tree, tokens, likes_the_spine, seed)).accepted)
    assert (accepted[1] >= accepted[0]).all()


def test_without_its_spine_a_small_tree_can_accept_less_than_the_chain() -> None:
    # The control: what the forced spine is for.
    log_probs = torch.tensor([[[-0.7, -0.8], [-5.0, -6.0], [-5.0, -6.0]]])
    chosen = torch.zeros(1, 4, dtype=torch.int64)
    kept = {}
    for spine in (False, True):
        tree = build_tree(log_probs, 3, force_spine=spine)
        kept[spine] = int(walk(tree.parents, tree.token_ids(torch.arange(2).expand(1, 3, 2)), chosen).accepted)
    assert kept == {False: 2, True: 3}


def test_sampling_draws_once_a_row_with_each_requests_own_settings() -> None:
    tree = build_tree(draft(3, 4, 3, "smooth", 0), 20)
    tokens = tree.token_ids(torch.arange(3).expand(3, 4, 3))
    logits = torch.randn(3, 21, 5, generator=torch.Generator().manual_seed(1))
    temperature, top_p, top_k = torch.tensor([0.0, 0.7, 1.3]), torch.tensor([1.0, 0.8, 1.0]), torch.tensor([0, 0, 2])
    uniforms = keyed_uniforms(torch.arange(3), torch.arange(21).expand(3, 21))
    kept = sample_and_match(tree.parents, tokens, logits, temperature, top_p, top_k, uniforms)
    chosen = torch.stack(
        [
            draw(filtered_probs(logits[b], float(temperature[b]), float(top_p[b]), int(top_k[b])), uniforms[b])
            for b in range(3)
        ]
    )
    expected = walk(tree.parents, tokens, chosen)
    assert torch.equal(kept.indices, expected.indices)
    assert torch.equal(kept.bonus, expected.bonus)
    assert kept.bonus[0] == greedy(tree.parents, tokens, logits).bonus[0]


def test_shapes_that_do_not_belong_together_are_refused() -> None:
    parents = torch.tensor([[-1, 0]])
    with pytest.raises(ConfigError, match="chosen"):
        walk(parents, parents, torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ConfigError, match="token_ids"):
        walk(parents, torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64))
