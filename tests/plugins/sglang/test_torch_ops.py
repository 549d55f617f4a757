"""The plain steps of a round against the library's own definitions: trees, layout, walk, moves."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_trees import KINDS, case_of, walked

from ddbench.errors import ConfigError
from ddbench.plugins.kernels.bits import unpack_bits
from ddbench.plugins.sglang import torch_ops as ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk
from ddbench.tree import Tree, ancestor_mask, build_tree_heap, child_links, pack, position_ids, walk

WIDTHS = [2, 8, 17, 33, 64, 128]
STEPS = (0.0, -1e-9, -3e-8, -0.25, -0.5, -0.5000001, -1.0, -2.0, -7.0, -3e38, -math.inf)


def heap_tree(case, caps: Caps) -> Tree:
    """The same tree by the obvious build, padded to the buffers' nodes."""
    tree = build_tree_heap(
        case.log_probs, caps.nodes, caps.width, caps.depth, caps.min_log_prob, caps.force_spine
    )  # fmt: skip
    room = case.trees.verify_width - 1 - caps.nodes
    pad = torch.nn.functional.pad
    return Tree(
        pad(tree.scores, (0, room), value=-math.inf),
        pad(tree.parents, (0, room), value=-2),
        pad(tree.depths, (0, room)),
        pad(tree.ranks, (0, room), value=-1),
    )


def check_trees(case, caps: Caps) -> None:
    trees, rows = case.trees, case.rows
    expected = heap_tree(case, caps)
    assert torch.equal(trees.depths[:rows, 1:].long(), expected.depths)
    assert torch.equal(trees.parents[:rows, 1:].long(), torch.where(expected.valid, expected.parents + 1, -1))
    assert torch.equal(trees.tokens[:rows, 1:], expected.token_ids(case.ids.long()).clamp(min=0))
    assert torch.equal(trees.tokens[:rows, 0], case.roots)
    assert (trees.parents[:rows, 0] == -1).all()
    assert not trees.depths[:rows, 0].any()
    assert torch.equal(unpack_bits(trees.bits[:rows], trees.verify_width), ancestor_mask(expected.parents))
    assert not trees.tokens[rows:].any()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_those_of_the_heap(width: int, kind: str) -> None:
    k = min(12, width - 1)
    for seed in range(3):
        check_trees(case_of(width, seed, kind=kind), Caps(k, 7, width - 1))
        caps = Caps(max(1, k // 2), 4, max(4, width // 2) if width > 4 else 1, -6.0, width > 4)
        check_trees(case_of(width, seed, kind=kind, caps=caps), caps)


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_ties_and_caps_of_every_kind(data: st.DataObject) -> None:
    depth, k = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    row = st.lists(st.sampled_from(STEPS), min_size=k, max_size=k)
    table = torch.tensor([[sorted(data.draw(row), reverse=True) for _ in range(depth)] for _ in range(2)])
    width = data.draw(st.integers(k + 1, 40))
    caps = Caps(
        data.draw(st.integers(1, k)),
        data.draw(st.integers(1, depth)),
        data.draw(st.integers(1, width - 1)),
        data.draw(st.sampled_from([None, 0.0, -0.5, -1.0, -1.7, -4.0])),
    )
    if caps.nodes >= caps.depth and data.draw(st.booleans()):
        caps = Caps(caps.width, caps.depth, caps.nodes, caps.min_log_prob, True)
    caps.check(width, depth + 1, k)
    case = case_of(width, 0, rows=2, block=depth + 1, k=k)
    case.log_probs = table
    case.trees.limit(caps)
    ops.build(case.trees, table, case.ids[:, :, :k], case.roots)
    case.ids = case.ids[:, :, :k]
    check_trees(case, caps)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_positions_links_and_masks(width: int, dtype: torch.dtype) -> None:
    for seed in range(3):
        case = case_of(width, seed, kind=("smooth", "whole", "cut")[seed])
        rows, parents = (
            case.rows,
            torch.where(case.trees.parents[:3, 1:] < 0, -2, case.trees.parents[:3, 1:] - 1).long(),
        )
        depths = case.trees.depths[:3, 1:].long()
        positions, whole, part = case.positions(), *torch.full((2, 3 * width * (60 + width) + 5), 7).to(dtype)
        ops.lay_out(case.trees, case.seq_lens, positions, whole, True)
        ops.lay_out(case.trees, case.seq_lens, positions, part)
        assert torch.equal(positions, position_ids(depths, case.seq_lens))
        first, following = child_links(parents)
        assert torch.equal(case.trees.first_child[:rows], first)
        assert torch.equal(case.trees.next_sibling[:rows], following)
        full = pack(torch.zeros_like(parents) - 1, depths, case.seq_lens)  # rows of every window, no padding
        assert full.cu_seqlens[-1] == rows * width
        end, at = 0, 0
        seen = ancestor_mask(parents)
        for row, length in enumerate(case.seq_lens.tolist()):
            at, end = end, end + width * (length + width)
            expected = torch.nn.functional.pad(seen[row], (length, 0), value=True)
            assert torch.equal(whole[at:end].view(width, -1).bool(), expected)
            block = part[at:end].view(width, -1)
            assert torch.equal(block[:, length:].bool(), seen[row])
            assert (block[:, :length] == torch.tensor(7).to(dtype)).all()  # the context is left as it was
        assert (whole[end:] == torch.tensor(7).to(dtype)).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_packed_masks_hold_the_same_bits(width: int) -> None:
    case = case_of(width, 1)
    whole = torch.zeros(3 * width * (60 + width), dtype=torch.bool)
    ops.lay_out(case.trees, case.seq_lens, case.positions(), whole, True)
    packed = torch.full((whole.numel() // 8 + 2 * width * width + 99,), 255, dtype=torch.uint8)
    starts = torch.zeros(6, dtype=torch.int32)
    ops.write_packed_mask(case.trees, case.seq_lens, packed, starts)
    at = 0
    for row, length in enumerate([*case.seq_lens.tolist(), 1, 1]):
        size = width * (length + width)
        expected = whole[at : at + size] if row < 3 else torch.ones(size, dtype=torch.bool)
        at += size
        mine = packed[starts[row] : starts[row + 1]]
        bits = (mine[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten()
        assert torch.equal(bits[:size].bool(), expected)
        assert not bits[size:].any()
        assert bits.numel() == -(-size // 8) * 8


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["smooth", "whole"])
def test_the_walk_is_the_library_s(width: int, kind: str) -> None:
    longest = 0
    for seed in range(8):
        case = case_of(width, seed, kind=kind)
        trees, rows, chosen = case.trees, case.rows, case.choices()
        out = Walk(trees.rows, trees.block, "cpu")
        ops.walk(trees, chosen, case.seq_lens, out)
        parents = torch.where(trees.parents[:rows, 1:] < 0, -2, trees.parents[:rows, 1:] - 1).long()
        expected = walk(parents, trees.tokens[:rows, 1:], chosen)
        accepted = expected.accepted
        longest = max(longest, int(accepted.max()))
        assert torch.equal(out.commit_lens[:rows].long(), accepted + 1)
        assert torch.equal(out.bonus[:rows], expected.bonus)
        assert torch.equal(out.new_seq_lens[:rows], case.seq_lens + accepted + 1)
        for row in range(rows):
            length = int(accepted[row]) + 1
            path = expected.indices[row, :length]
            assert out.path[row, :length].tolist() == path.tolist()
            assert (out.path[row, length:] == -1).all()
            line = [*trees.tokens[row, path[1:]].tolist(), int(expected.bonus[row])]
            assert out.out_tokens[row].tolist() == line + [0] * (trees.block - length)
    assert longest >= min(3, width - 1)


def test_a_forced_path_has_the_asked_length_as_far_as_the_tree_reaches() -> None:
    case = case_of(33, 4)
    deepest = case.trees.depths[:3].amax(1).tolist()
    for length in (1, 3, 7, 8):
        out = Walk(case.trees.rows, case.trees.block, "cpu")
        forced = torch.tensor([length, 0, length], dtype=torch.int32)
        chosen = case.choices()
        ops.walk(case.trees, chosen, case.seq_lens, out, forced)
        for row in (0, 2):
            path = out.path[row, : out.commit_lens[row]].tolist()
            assert len(path) == min(length, deepest[row] + 1)
            assert [int(case.trees.parents[row, local]) for local in path] == [-1, *path[:-1]]
            assert out.bonus[row] == chosen[row, path[-1]]
        free = Walk(case.trees.rows, case.trees.block, "cpu")
        ops.walk(case.trees, chosen, case.seq_lens, free)
        assert torch.equal(out.path[1], free.path[1])


@pytest.mark.parametrize("width", WIDTHS)
def test_moves_bring_the_path_to_the_front(width: int) -> None:
    for seed in range(4):
        case = case_of(width, seed, kind="whole")
        out = walked(case)
        room = case.rows * width + 9
        slots = case.slots(room)
        buffers = [torch.randn(room, 2, 3), torch.randn(room, 5)]
        before = [buffer.clone() for buffer in buffers]
        ops.move_kv(out, slots, ops.kv_table(buffers))
        hidden = torch.randn(case.rows * width, 6)
        gathered = torch.full((case.rows * case.trees.block, 6), math.nan)
        ops.gather_rows(out, hidden, gathered)
        for row in range(case.rows):
            path = out.path[row, : out.commit_lens[row]].tolist()
            for place, local in enumerate(path):
                for buffer, was in zip(buffers, before, strict=True):
                    assert torch.equal(buffer[slots[row, place]], was[slots[row, local]])
                assert torch.equal(gathered[row * case.trees.block + place], hidden[row * width + local])
            for buffer, was in zip(buffers, before, strict=True):
                assert torch.equal(buffer[slots[row, len(path) :]], was[slots[row, len(path) :]])
            left = gathered[row * case.trees.block + len(path) : (row + 1) * case.trees.block]
            assert torch.equal(left, hidden[row * width].expand_as(left))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shards", [2, 4])
def test_merged_shards_are_the_whole_vocabulary(dtype: torch.dtype, shards: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(5, 320, generator=generator) * 3).to(dtype)
    logits[1] = 0.0  # all equal: ids decide, across shards too
    expected, expected_ids = ops.candidates(logits, 16)
    size = 320 // shards
    parts = [ops.shard_candidates(logits[:, at : at + size], 16) for at in range(0, 320, size)]
    values = torch.stack([values for values, _, _ in parts])
    ids = torch.stack([ids + at * size for at, (_, ids, _) in enumerate(parts)])
    found, found_ids = ops.merge(values, ids, torch.stack([lse for _, _, lse in parts]))
    assert torch.equal(found_ids, expected_ids)
    torch.testing.assert_close(found, expected)


def test_the_block_and_its_slots() -> None:
    table = torch.arange(1, 81, dtype=torch.int32).view(4, 20)
    block_ids, chain, draft_slots, slots = (torch.full((2, size), -1) for size in (4, 4, 4, 6))
    lens, requests = torch.tensor([3, 17]), torch.tensor([2, 0])
    ops.prepare(torch.tensor([9, 8]), lens, requests, table, 99, block_ids, chain, draft_slots, slots)
    assert block_ids.tolist() == [[9, 99, 99, 99], [8, 99, 99, 99]]
    assert chain.tolist() == [[3, 4, 5, 6], [17, 18, 19, 20]]
    assert draft_slots.tolist() == [[44, 45, 46, 47], [18, 19, 20, 0]]  # beyond the table's edge is nobody's slot
    assert slots.tolist() == [[44, 45, 46, 47, 48, 49], [18, 19, 20, 0, 0, 0]]


@pytest.mark.parametrize(
    ("caps", "key"),
    [
        (Caps(0, 1, 1), "width"),
        (Caps(9, 1, 1), "width"),
        (Caps(1, 8, 1), "depth"),
        (Caps(1, 0, 1), "depth"),
        (Caps(1, 1, 0), "nodes"),
        (Caps(1, 1, 16), "nodes"),
        (Caps(1, 1, 1, 0.5), "min_log_prob"),
        (Caps(1, 1, 1, math.nan), "min_log_prob"),
        (Caps(1, 5, 4, None, True), "force_spine"),
    ],
)
def test_caps_beyond_what_was_captured_are_refused(caps: Caps, key: str) -> None:
    with pytest.raises(ConfigError) as error:
        caps.check(verify_width=16, block=8, top_k=8)
    assert error.value.key == key


@given(
    st.integers(1, 8),
    st.integers(1, 7),
    st.integers(1, 15),
    st.booleans(),
    st.none() | st.floats(-(2.0**9), 0, width=32),
)
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
def test_caps_survive_the_way_to_the_device(
    width: int, depth: int, nodes: int, spine: bool, least: float | None
) -> None:
    caps = Caps(width, depth, nodes, least, spine)
    trees = Trees(1, 16, 8, "cpu")
    trees.limit(caps)
    found = Caps.of(trees.caps.tolist())
    assert found == caps  # a float32 floor comes back exactly


@pytest.mark.parametrize(("width", "block"), [(0, 8), (129, 8), (16, 1), (16, 18)])
def test_sizes_that_the_kernels_cannot_hold(width: int, block: int) -> None:
    with pytest.raises(ConfigError):
        Trees(1, width, block, "cpu")
