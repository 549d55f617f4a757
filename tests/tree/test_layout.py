"""Masks, positions and links against their definitions, for padded and for ragged batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import KINDS, draft

from ddbench.errors import ConfigError
from ddbench.tree import PADDING, Tree, ancestor_mask, build_tree, child_links, pack, position_ids, row_parents

settings.register_profile("tree", deadline=None, derandomize=True, database=None)
settings.load_profile("tree")


def some_tree(kind: str, seed: int, nodes: int, spine: bool) -> Tree:
    return build_tree(draft(3, 5, 6, kind, seed), nodes, force_spine=spine and nodes >= 5)


trees = st.builds(some_tree, st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(1, 40), st.booleans())


def ancestors(parents: list[int], row: int) -> set[int]:
    """Rows above a row and itself, by walking up."""
    seen = {row}
    while row > 0 and parents[row - 1] != PADDING:
        row = parents[row - 1] + 1
        seen.add(row)
    return seen


@given(trees)
@settings(max_examples=80)
def test_mask_is_ancestors_and_self(tree: Tree) -> None:
    mask = ancestor_mask(tree.parents)
    assert torch.equal(mask, ancestor_mask(tree.parents, max_depth=5))
    for b, parents in enumerate(tree.parents.tolist()):
        for row in range(len(parents) + 1):
            assert set(mask[b, row].nonzero()[:, 0].tolist()) == ancestors(parents, row)


def test_mask_of_a_long_chain() -> None:
    chain = torch.arange(-1, 99)[None]
    assert torch.equal(ancestor_mask(chain)[0], torch.ones(101, 101, dtype=torch.bool).tril())


def test_mask_of_nodes_in_any_order() -> None:
    # Children before their parents: 0 is a child of 2, 1 of the root, 2 of 1.
    mask = ancestor_mask(torch.tensor([[2, -1, 1]]))[0].int().tolist()
    assert mask == [[1, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0], [1, 0, 1, 1]]


@given(trees)
@settings(max_examples=50)
def test_links_list_the_children_in_order(tree: Tree) -> None:
    first_child, next_sibling = child_links(tree.parents)
    for b, parents in enumerate(tree.parents.tolist()):
        for row in range(len(parents) + 1):
            expected = [node + 1 for node, parent in enumerate(parents) if parent == row - 1 and parent != PADDING]
            if row > 0 and parents[row - 1] == PADDING:
                expected = []
            found, child = [], int(first_child[b, row])
            while child != -1:
                found.append(child)
                child = int(next_sibling[b, child])
            assert found == expected
            ranks = [int(tree.ranks[b, child - 1]) for child in found]
            assert ranks == sorted(ranks)


def test_positions_follow_depth() -> None:
    depths = torch.tensor([[1, 1, 2, 0], [1, 2, 3, 4]])
    assert position_ids(depths, torch.tensor([10, 3])).tolist() == [[10, 11, 11, 12, 10], [3, 4, 5, 6, 7]]


@given(trees)
@settings(max_examples=60)
def test_ragged_equals_padded_without_padding(tree: Tree) -> None:
    start = torch.tensor([7, 0, 100])
    layout = pack(tree.parents, tree.depths, start)
    counts = (tree.counts() + 1).tolist()
    assert layout.cu_seqlens.tolist() == [0, counts[0], sum(counts[:2]), sum(counts)]
    assert layout.cu_seqlens.dtype == torch.int32
    padded_mask, padded_positions = ancestor_mask(tree.parents), position_ids(tree.depths, start)
    links = (row_parents(tree.parents), *child_links(tree.parents))
    mask = layout.mask()
    for b, rows in enumerate(counts):
        begin = int(layout.cu_seqlens[b])
        own = slice(begin, begin + rows)
        assert layout.sequence[own].tolist() == [b] * rows
        assert torch.equal(layout.position_ids[own], padded_positions[b, :rows])
        assert torch.equal(mask[own, own], padded_mask[b, :rows, :rows])
        assert not mask[own, :begin].any()
        assert not mask[own, begin + rows :].any()
        for ragged, padded in zip((layout.parents, layout.first_child, layout.next_sibling), links, strict=True):
            moved = torch.where(padded[b, :rows] < 0, -1, padded[b, :rows] + begin)
            assert torch.equal(ragged[own], moved)
        tokens = torch.arange(3 * (tree.parents.shape[1] + 1)).view(3, -1)
        assert torch.equal(tokens.flatten()[layout.source][own], tokens[b, :rows])


def test_flat_mask_has_the_context_in_front() -> None:
    parents = torch.tensor([[-1, -1], [-1, -2]])
    layout = pack(parents, torch.tensor([[1, 1], [1, 0]]), torch.tensor([2, 1]))
    flat = layout.flat_mask(torch.tensor([2, 1])).int().tolist()
    first = [1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1]
    second = [1, 1, 0, 1, 1, 1]
    assert flat == first + second
    assert layout.flat_mask().int().tolist() == [1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 1]


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="parents"):
        ancestor_mask(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ConfigError, match="start"):
        position_ids(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ConfigError, match="max_depth"):
        ancestor_mask(torch.zeros(1, 3, dtype=torch.int64), max_depth=0)
