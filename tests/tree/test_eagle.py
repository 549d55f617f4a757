"""EAGLE's expansion and reranking against an obvious one with a drafter in the loop."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from trees import assert_equal, draft, paths

from ddbench.errors import ConfigError
from ddbench.tree import EagleExpansion, Tree, ancestor_mask, build_tree, walk

settings.register_profile("tree", deadline=None, derandomize=True, database=None)
settings.load_profile("tree")

VOCABULARY = 9
Drafter = Callable[[tuple[int, ...]], Tensor]  # tokens of a path -> log-probabilities [VOCABULARY]


def drafter(seed: int, coarse: bool) -> Drafter:
    """A drafter whose proposal depends on the whole path; a coarse one gives equal probabilities often."""

    def log_probs(path: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, path)) % 2**31)
        rough = torch.randn(VOCABULARY, generator=generator).log_softmax(0)
        return rough.round() if coarse else rough

    return log_probs


def grow(draft_row: list[Drafter], depth: int, width: int, nodes: int) -> EagleExpansion:
    """Drives an expansion as a decoding loop does, and checks what it says of its beam on the way."""
    batch = len(draft_row)
    expansion = EagleExpansion(batch, depth, width, nodes)
    expansion.first(torch.stack([of(()) for of in draft_row]))
    history: list[list[tuple[int, ...]]] = [
        [] for _ in draft_row
    ]  # paths of all drafted rows, in the order of the mask
    beam: list[list[tuple[int, ...]]] = [[()] * width for _ in draft_row]
    while True:
        beam = [
            [
                (*beam[b][int(expansion.beam_parents[b, slot])], int(expansion.beam_token_ids[b, slot]))
                for slot in range(width)
            ]
            for b in range(batch)
        ]
        mask = expansion.beam_mask
        assert mask.shape == (batch, width, expansion.level * width)
        for b in range(batch):
            history[b] += beam[b]
            for slot, path in enumerate(beam[b]):
                seen = [history[b][row] for row in mask[b, slot].nonzero()[:, 0].tolist()]
                assert seen == [path[: d + 1] for d in range(len(path))]
        if expansion.level == depth:
            return expansion
        expansion.expand(torch.stack([torch.stack([of(path) for path in beam[b]]) for b, of in enumerate(draft_row)]))


def obvious(of: Drafter, depth: int, width: int, nodes: int) -> list[tuple[float, tuple[int, ...]]]:
    """Score and tokens of every node, best first."""
    beam: list[tuple[np.float32, tuple[int, ...]]] = [(np.float32(0), ())]
    made: list[tuple[np.float32, tuple[int, ...]]] = []
    for _ in range(depth):
        children = [
            (score + np.float32(value), (*path, int(token)))
            for score, path in beam
            for value, token in zip(*(part.tolist() for part in of(path).topk(width)), strict=True)
        ]
        made += children
        beam = sorted(children, key=lambda node: -node[0])[:width]  # stable: equal ones keep their order
    return [(float(score), path) for score, path in sorted(made, key=lambda node: -node[0])[:nodes]]


def token_paths(tree: Tree, tokens: Tensor, row: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for parent, token in zip(tree.parents[row].tolist(), tokens[row].tolist(), strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 5), st.booleans(), st.data())
@settings(max_examples=80)
def test_expansion_equals_the_obvious_one(seed: int, depth: int, width: int, coarse: bool, data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, EagleExpansion.candidates(depth, width)))
    drafters = [drafter(seed + b, coarse) for b in range(2)]
    tree, tokens = grow(drafters, depth, width, nodes).rerank()
    for b, of in enumerate(drafters):
        expected = obvious(of, depth, width, nodes)
        assert tree.scores[b].tolist() == [score for score, _ in expected]
        assert token_paths(tree, tokens, b) == [path for _, path in expected]
        assert tree.depths[b].tolist() == [len(path) for _, path in expected]
        parents = tree.parents[b].tolist()
        assert all(parent < n for n, parent in enumerate(parents))
        siblings = list(zip(parents, tree.ranks[b].tolist(), strict=True))
        assert len(set(siblings)) == nodes
        assert set(tree.ranks[b].tolist()) <= set(range(width))


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=40)
def test_a_wide_expansion_of_a_block_drafters_proposal_is_its_best_first_tree(seed: int, nodes: int) -> None:
    # Where the proposal does not depend on the path, a beam as wide as the budget loses nothing.
    log_probs = draft(2, 4, 6, "smooth", seed)
    expansion = EagleExpansion(2, 4, 6, nodes)
    expansion.first(log_probs[:, 0])
    for d in range(1, 4):
        expansion.expand(log_probs[:, d, None].expand(2, 6, 6))
    assert_equal(expansion.rerank()[0], build_tree(log_probs, nodes))


def test_width_one_is_the_chain() -> None:
    of = drafter(3, coarse=False)
    tree, tokens = grow([of], 5, 1, 5).rerank()
    path: tuple[int, ...] = ()
    for _ in range(5):
        path = (*path, int(of(path).argmax()))
    assert tokens[0].tolist() == list(path)
    assert tree.parents[0].tolist() == [-1, 0, 1, 2, 3]
    assert paths(tree, 0)[-1] == (0, 0, 0, 0, 0)


def test_smaller_budgets_are_slices() -> None:
    expansion = grow([drafter(1, coarse=True), drafter(2, coarse=True)], 4, 3, 25)
    whole, tokens = expansion.rerank()
    for nodes in (1, 7, 24):
        tree, some = expansion.rerank(nodes)
        assert_equal(tree, whole.sliced(nodes))
        assert torch.equal(some, tokens[:, :nodes])


def test_ids_name_the_tokens() -> None:
    log_probs, ids = torch.tensor([[-3.0, -0.1]]), torch.tensor([[70, 40]])
    expansion = EagleExpansion(1, 2, 2, 6)
    expansion.first(log_probs, ids)
    assert expansion.beam_token_ids.tolist() == [[40, 70]]
    expansion.expand(log_probs[:, None].expand(1, 2, 2), ids[:, None].expand(1, 2, 2))
    tree, tokens = expansion.rerank(3)
    assert token_paths(tree, tokens, 0) == [(40,), (40, 40), (70,)]


def test_what_is_ruled_out_makes_no_node() -> None:
    nothing = torch.full((1, 2, 3), -math.inf)
    expansion = EagleExpansion(1, 2, 2, 6)
    expansion.first(torch.tensor([[-0.5, -math.inf, math.nan]]))
    expansion.expand(nothing)
    tree, tokens = expansion.rerank()
    assert tree.counts().tolist() == [1]
    assert tokens.tolist() == [[0, -1, -1, -1, -1, -1]]
    assert tree.parents.tolist() == [[-1, -2, -2, -2, -2, -2]]
    assert ancestor_mask(tree.parents)[0].int().tolist()[1][:2] == [1, 1]
    chosen = torch.zeros(1, 7, dtype=torch.int64)
    assert walk(tree.parents, tokens, chosen).accepted.tolist() == [1]


def test_what_cannot_be_is_refused() -> None:
    for asked in ({"width": 0}, {"depth": 0}, {"nodes": 0}, {"nodes": 7}, {"batch": 0}):
        with pytest.raises(ConfigError, match=next(iter(asked))):
            EagleExpansion(**({"batch": 1, "depth": 2, "width": 2, "nodes": 6} | asked))  # type: ignore[arg-type]
    expansion = EagleExpansion(1, 2, 2, 6)
    with pytest.raises(ConfigError, match="expand"):
        expansion.expand(torch.zeros(1, 2, 4))
    with pytest.raises(ConfigError, match="log_probs"):
        expansion.first(torch.zeros(1, 1))
    with pytest.raises(ConfigError, match="ids"):
        expansion.first(torch.zeros(1, 4), torch.zeros(1, 3, dtype=torch.int64))
    expansion.first(torch.zeros(1, 4))
    with pytest.raises(ConfigError, match="first"):
        expansion.first(torch.zeros(1, 4))
    with pytest.raises(ConfigError, match="nodes"):
        expansion.rerank()  # six candidates are not made yet
    with pytest.raises(ConfigError, match="log_probs"):
        expansion.expand(torch.zeros(1, 4))
