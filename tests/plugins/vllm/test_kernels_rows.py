"""Positions, walk, and the moves of hidden rows, keys and values equal their torch twins."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from kernel_cases import DEVICES, batch, choices_along, copy_of, either_layout, on_device, same, walked

from ddbench.plugins.vllm import torch_ops
from ddbench.plugins.vllm.kernels import ops
from ddbench.plugins.vllm.kernels.kv_table import KVTable
from ddbench.plugins.vllm.state import TreeState

NODES = [1, 7, 16, 48, 127]
DTYPES = [torch.bfloat16, torch.float32]


def seeds(device: str) -> range:
    return range(3 if device == "cpu" else 30)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nodes", NODES)
def test_positions_go_to_the_tree_and_the_walk_brings_them_back(device: str, nodes: int) -> None:
    on_device(device)
    for seed in seeds(device):
        case = batch(nodes, seed)
        positions = torch.randint(0, 9999, (case.tokens,))
        inputs = torch.randint(0, 50, (case.tokens,), dtype=torch.int32)
        expected, expected_inputs = positions.clone(), inputs.clone()
        torch_ops.apply_trees(case.state, case.rows, case.query_start, expected, expected_inputs)
        found, found_inputs = positions.to(device), inputs.to(device)
        state, start = copy_of(case.state, device), case.query_start.to(device)
        ops.apply_trees(state, case.rows, start, found, found_inputs)
        assert torch.equal(found.cpu(), expected)
        assert torch.equal(found_inputs.cpu(), expected_inputs)
        choices, ends = (part.to(device) for part in choices_along(case, seed))
        emitted = torch.empty(case.rows, nodes + 1, dtype=torch.int32, device=device)
        ops.walk(state, case.rows, choices, ends, emitted, start, found)
        assert torch.equal(found.cpu(), positions)
        again = torch.empty_like(emitted)
        ops.walk(state, case.rows, choices, ends, again)
        assert torch.equal(again, emitted)
        ops.apply_trees(state, case.rows, start, found, None)
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_the_walk(device: str, nodes: int, dtype: torch.dtype) -> None:
    on_device(device)
    accepted = 0
    for seed in seeds(device):
        case = batch(nodes, seed, kind=("smooth", "whole")[seed % 2])
        choices, cu_sampled = choices_along(case, seed)
        state = copy_of(case.state, device)
        state.path.fill_(55)
        for width in (nodes + 1, nodes + 4):
            expected = torch.full((case.rows, width), 99, dtype=torch.int32)
            torch_ops.walk(case.state, case.rows, choices, cu_sampled, expected)
            found = torch.full((case.rows + 1, width), 99, dtype=torch.int32, device=device)
            # What lies behind the last row's choices must not be followed.
            padded = torch.cat([choices, torch.full((200,), int(case.state.tokens[0, 0]))])
            ops.walk(state, case.rows, padded.to(device, dtype), cu_sampled.to(device), found[: case.rows])
            assert torch.equal(found[: case.rows].cpu(), expected)
            assert (found[case.rows] == 99).all()
            assert torch.equal(state.path[: case.rows].cpu(), case.state.path[: case.rows])
            assert (state.path[case.rows :] == 55).all()
        accepted += int((case.state.path[: case.rows] > 0).sum())
    assert accepted > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("depth", [1, 12, 13, 15, 16])
def test_the_walk_goes_as_deep_as_a_tree_can(device: str, depth: int) -> None:
    on_device(device)
    state = TreeState(2, 20, torch.device(device))
    line = torch.arange(1, depth + 1, dtype=torch.int32)
    state.tokens[0, :depth], state.parents[0, :depth] = line.to(device), (line - 1).to(device)
    state.row_slot[0], state.row_drafts[0] = 0, depth
    choices = torch.arange(1, depth + 2).to(device)
    emitted = torch.empty(1, depth + 1, dtype=torch.int32, device=device)
    ops.walk(state, 1, choices, torch.tensor([depth + 1], dtype=torch.int32, device=device), emitted)
    assert emitted[0].tolist() == list(range(1, depth + 2))
    assert state.path[0, : depth + 1].tolist() == list(range(depth + 1))


@pytest.mark.parametrize("device", DEVICES)
def test_rows_with_one_choice_and_no_tree(device: str) -> None:
    on_device(device)
    case = batch(7, 0)
    case.state.row_drafts[1] = 0
    case.state.row_slot[2] = -1
    choices, cu_sampled = torch.tensor([3, 4, 5, 6]), torch.tensor([1, 2, 3, 4], dtype=torch.int32)
    state = copy_of(case.state, device)
    found = torch.empty(4, 8, dtype=torch.int32, device=device)
    ops.walk(state, 4, choices.to(device), cu_sampled.to(device), found)
    assert found[:, 0].tolist() == [3, 4, 5, 6]
    assert (found[:, 1:] == -1).all()
    assert state.path[:4, 0].tolist() == [0] * 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_hidden_rows_gather_in_place(device: str, nodes: int, dtype: torch.dtype) -> None:
    on_device(device)
    moved = 0
    for seed in seeds(device):
        case = walked(batch(nodes, seed, kind="whole"), seed)
        hidden = torch.randn(case.tokens, 1100).to(dtype)
        expected = hidden.clone()
        torch_ops.gather_rows(case.state, case.rows, case.query_start, expected)
        found = hidden.clone().to(device)
        ops.gather_rows(copy_of(case.state, device), case.rows, case.query_start.to(device), found)
        assert torch.equal(found.cpu(), expected)
        moved += int((found.cpu() != hidden).any(1).sum())
    assert moved > 0 or nodes == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by_head", [True, False])
@pytest.mark.parametrize("head_size", [64, 96])
def test_keys_and_values_move_in_every_layer(
    device: str, nodes: int, dtype: torch.dtype, by_head: bool, head_size: int
) -> None:
    on_device(device)
    heads, page, layers = 3, 16, 3
    for seed in seeds(device):
        case = walked(batch(nodes, seed, kind="whole"), seed)
        blocks = case.tokens // page + 4
        caches = [
            either_layout(torch.randn, blocks, heads, page, 2 * head_size, by_head).to(dtype) for _ in range(layers)
        ]
        expected = [cache.clone() for cache in caches]
        mapping = torch.randperm(blocks * page)[: case.tokens]
        torch_ops.move_kv(case.state, case.rows, case.query_start, mapping, expected)
        found = [cache.to(device) for cache in caches]
        assert found[0].stride() == caches[0].stride()
        state = copy_of(case.state, device)
        ops.move_kv(state, case.rows, case.query_start.to(device), mapping.to(device), KVTable.of(found))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("device", DEVICES)
def test_no_table_is_written_but_the_path(device: str) -> None:
    on_device(device)
    case = walked(batch(16, 3), 3)
    state = copy_of(case.state, device)
    hidden = torch.randn(case.tokens, 64, device=device)
    ops.gather_rows(state, case.rows, case.query_start.to(device), hidden)
    same(state, case.state)


def test_mixed_caches_are_refused() -> None:
    one = torch.zeros(4, 2, 16, 64)
    with pytest.raises(ValueError, match="no KV cache"):
        KVTable.of([])
    with pytest.raises(ValueError, match=r"layer 1: dtype"):
        KVTable.of([one, one.half()])
    with pytest.raises(ValueError, match=r"layer 1: shape"):
        KVTable.of([one, torch.zeros(4, 2, 16, 32)])
    with pytest.raises(ValueError, match=r"layer 1: strides"):
        KVTable.of([one, torch.zeros(4, 16, 2, 64).permute(0, 2, 1, 3)])
    with pytest.raises(ValueError, match="last dense"):
        KVTable.of([one.transpose(2, 3)])
