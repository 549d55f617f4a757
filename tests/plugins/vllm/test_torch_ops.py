"""The plain-torch steps of a round against obvious re-statements, on random trees in random batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddbench.plugins.vllm import torch_ops as ops
from ddbench.plugins.vllm.options import Options
from ddbench.plugins.vllm.state import TreeState
from ddbench.tree import build_tree_heap

settings.register_profile("vllm_ops", deadline=None, derandomize=True, database=None)
settings.load_profile("vllm_ops")

CPU = torch.device("cpu")
VOCAB, DEPTH, WIDTH = 7, 5, 4


@dataclass(frozen=True)
class Round:
    """A batch of ``rows`` in a state of more slots: ``bounds`` is query_start_loc, ``tokens`` their count."""

    state: TreeState
    rows: int
    bounds: Tensor
    generator: torch.Generator

    @property
    def tokens(self) -> int:
        return int(self.bounds[-1])

    def windows(self) -> list[tuple[int, int, int, int]]:
        """(row, slot, index of the root's token, nodes) of the rows that verify a tree."""
        slots, drafts = self.state.row_slot.tolist(), self.state.row_drafts.tolist()
        return [
            (row, slots[row], int(self.bounds[row + 1]) - 1 - drafts[row], drafts[row])
            for row in range(self.rows)
            if slots[row] >= 0 and drafts[row] > 0
        ]


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Random trees in random slots; rows with none, with a truncated one, with tokens before their root."""
    nodes, slots = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    rows = draw(st.integers(1, slots))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    state = TreeState(slots, nodes, CPU)
    options = Options(nodes=nodes, block=DEPTH + 1, width=WIDTH)
    logits = torch.randn(slots * DEPTH, VOCAB, generator=generator) * 2
    log_probs, ids = (part.view(slots, DEPTH, -1) for part in ops.candidates(logits, WIDTH))
    ops.write_trees(state, options, log_probs, ids, torch.arange(slots))
    order = torch.randperm(slots, generator=generator).tolist()
    lengths = []
    for row in range(rows):
        drafts = draw(st.integers(0, nodes))
        state.row_drafts[row] = drafts
        state.row_slot[row] = order[row] if draw(st.booleans()) else -1
        lengths.append(drafts + 1 + draw(st.integers(0, 3)))
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return Round(state, rows, bounds, generator)


def choices_of(one: Round) -> tuple[Tensor, Tensor]:
    """A target's choices, and their cumulative counts: small vocabulary, so that paths are long."""
    counts = one.state.row_drafts[: one.rows] + 1
    ends = counts.cumsum(0).to(torch.int32)
    return torch.randint(0, VOCAB, (int(ends[-1]),), generator=one.generator), ends


def walked(one: Round) -> tuple[Tensor, Tensor, Tensor]:
    choices, ends = choices_of(one)
    emitted = torch.zeros(one.rows, one.state.nodes + 1, dtype=torch.int32)
    ops.walk(one.state, one.rows, choices, ends, emitted)
    return choices, ends, emitted


def ancestors(one: Round, slot: int, local: int) -> set[int]:
    """A local index, its parent, the parent's parent, ..., the root."""
    line = {local}
    while local > 0:
        local = int(one.state.parents[slot, local - 1])
        line.add(local)
    return line


@given(rounds())
def test_apply_places_trees_and_restore_undoes_it(one: Round) -> None:
    positions = torch.randint(0, 1000, (one.tokens,), generator=one.generator)
    for row in range(one.rows):  # as the engine counts: one after another
        begin, end = int(one.bounds[row]), int(one.bounds[row + 1])
        positions[begin:end] = positions[begin] + torch.arange(end - begin)
    tokens = torch.full((one.tokens,), -7, dtype=torch.int32)
    placed, ids = positions.clone(), tokens.clone()
    ops.apply_trees(one.state, one.rows, one.bounds, placed, ids)
    expected, named = positions.clone(), tokens.clone()
    for _, slot, root, drafts in one.windows():
        for node in range(drafts):
            expected[root + 1 + node] = positions[root] + one.state.depths[slot, node]
            named[root + 1 + node] = one.state.tokens[slot, node]
    assert torch.equal(placed, expected)
    assert torch.equal(ids, named)
    choices, ends = choices_of(one)
    emitted = torch.zeros(one.rows, one.state.nodes + 1, dtype=torch.int32)
    ops.walk(one.state, one.rows, choices, ends, emitted, one.bounds, placed)
    assert torch.equal(placed, positions)


@given(rounds())
@settings(max_examples=200)
def test_walk_takes_the_longest_path_that_the_target_chose(one: Round) -> None:
    choices, ends, emitted = walked(one)
    begins = [0, *ends.tolist()]
    trees = {row: (slot, drafts) for row, slot, _, drafts in one.windows()}
    for row in range(one.rows):
        chosen = choices[begins[row] : begins[row + 1]].tolist()
        slot, drafts = trees.get(row, (0, 0))
        best = {0}
        for local in range(1, drafts + 1):
            if int(one.state.parents[slot, local - 1]) < 0:
                continue
            line = sorted(ancestors(one, slot, local))
            agreed = all(
                chosen[int(one.state.parents[slot, i - 1])] == int(one.state.tokens[slot, i - 1]) for i in line[1:]
            )
            best = set(line) if agreed and len(line) > len(best) else best
        path = sorted(best)
        assert [local for local in one.state.path[row].tolist() if local >= 0] == path
        assert one.state.path[row, len(path) :].eq(-1).all()
        assert emitted[row, : len(path)].tolist() == [chosen[local] for local in path]
        assert emitted[row, len(path) :].eq(-1).all()


@given(rounds())
@settings(max_examples=200)
def test_moves_are_those_of_a_dictionary(one: Round) -> None:
    """Rows of features, and keys and values in pages of any order: read all, then write all."""
    walked(one)
    moves: dict[int, int] = {}
    for row, _, root, _ in one.windows():
        path = [local for local in one.state.path[row].tolist() if local >= 0]
        moves |= {root + place: root + local for place, local in enumerate(path)}
    hidden = torch.arange(one.tokens * 2, dtype=torch.float32).view(-1, 2)
    before = hidden.clone()
    ops.gather_rows(one.state, one.rows, one.bounds, hidden)
    assert hidden.tolist() == [before[moves.get(token, token)].tolist() for token in range(one.tokens)]

    size = 4
    blocks = -(-one.tokens // size) + 2
    slots = torch.randperm(blocks * size, generator=one.generator)[: one.tokens]
    caches = [torch.randn(blocks, 2, size, 6, generator=one.generator) for _ in range(2)]
    caches.append(torch.randn(blocks, size, 2, 6, generator=one.generator).transpose(1, 2))  # the other layout
    kept = [cache.clone() for cache in caches]
    ops.move_kv(one.state, one.rows, one.bounds, slots, ops.cache_table(caches))
    for cache, old in zip(caches, kept, strict=True):
        expected = old.clone()
        for target, source in moves.items():
            to, at = divmod(int(slots[target]), size), divmod(int(slots[source]), size)
            expected[to[0], :, to[1]] = old[at[0], :, at[1]]
        assert torch.equal(cache, expected)


@given(rounds(), st.integers(0, 6))
def test_visible_is_context_and_ancestors(one: Round, past: int) -> None:
    trees = {row: (slot, drafts) for row, slot, _, drafts in one.windows()}
    for row in range(one.rows):
        queries = int(one.bounds[row + 1] - one.bounds[row])
        slot, drafts = trees.get(row, (0, 0))
        root = queries - 1 - drafts
        expected = torch.zeros(queries, past + queries, dtype=torch.bool)
        for query in range(queries):
            seen = set(range(past + min(query, root) + 1))  # the context, and the row's tokens up to its root
            if query > root:
                local = query - root
                seen |= {past + root + above for above in ancestors(one, slot, local)}
                if int(one.state.parents[slot, local - 1]) < 0:  # padding: no ancestor, not even the root
                    seen = {*range(past + root), past + root + local}
            expected[query, list(seen)] = True
        assert torch.equal(ops.visible(one.state, row, queries, past + queries), expected)
        causal = torch.ones(queries, past + queries, dtype=torch.bool).tril(past)
        assert torch.equal(ops.visible(None, row, queries, past + queries), causal)


@given(st.integers(1, 128), st.integers(0, 10**6))
def test_bits_are_packed_and_unpacked(width: int, seed: int) -> None:
    mask = torch.rand(3, width, generator=torch.Generator().manual_seed(seed)) < 0.5
    words = ops.pack_bits(mask)
    for row in range(3):
        for local in range(width):
            assert (int(words[row, local // 32]) >> (local % 32)) & 1 == int(mask[row, local])
    assert torch.equal(ops.unpack_bits(words, width), mask)


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_candidates_are_sorted_and_ties_go_to_the_lower_id(k: int, seed: int) -> None:
    logits = torch.randint(0, 4, (5, 9), generator=torch.Generator().manual_seed(seed)).float()
    log_probs, ids = ops.candidates(logits, k)
    for row in range(5):
        order = sorted(range(9), key=lambda token: (-logits[row, token], token))[:k]
        assert ids[row].tolist() == order
        assert torch.allclose(log_probs[row], logits[row].log_softmax(-1)[order], atol=1e-6)


@given(st.integers(1, 40), st.integers(0, 10**6), st.booleans(), st.sampled_from([None, -3.0]), st.integers(1, DEPTH))
def test_written_trees_are_the_heap_built_ones(
    nodes: int, seed: int, spine: bool, least: float | None, depth: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    options = Options(nodes, DEPTH + 1, WIDTH, depth, least, spine and nodes >= depth)
    logits = torch.randint(0, 5, (2 * DEPTH, VOCAB), generator=generator).float()
    log_probs, ids = (part.view(2, DEPTH, -1) for part in ops.candidates(logits, options.candidates))
    state = TreeState(3, nodes, CPU)
    made = ops.write_trees(state, options, log_probs, ids, torch.tensor([2, 0]))
    assert torch.equal(made, state.tokens[[2, 0]])
    tree = build_tree_heap(log_probs, nodes, options.width, depth, least, options.force_spine)
    for row, slot in enumerate((2, 0)):
        for node in range(nodes):
            parent, level, rank = (int(part[row, node]) for part in (tree.parents, tree.depths, tree.ranks))
            assert int(state.parents[slot, node]) == (parent + 1 if level > 0 else -1)
            assert int(state.depths[slot, node]) == level
            assert int(state.tokens[slot, node]) == (int(ids[row, level - 1, rank]) if level > 0 else 0)
    assert state.parents[1].eq(-1).all()  # the third slot is as it was
