"""Masks and slots against their definitions, one element at a time."""

from __future__ import annotations

import torch

from ddbench.decoding.kv import KVBuffer, Slots
from ddbench.decoding.masks import chain_ancestors, committed_mask, prompt_mask, tree_mask
from ddbench.decoding.target import Prompts

FLOOR = torch.finfo(torch.float32).min


def test_prompt_mask() -> None:
    positions = torch.tensor([[0, 1, 2, 3], [-2, -1, 0, 1]])
    mask = prompt_mask(positions, torch.float32)
    assert mask.shape == (2, 1, 4, 4)
    for row in range(2):
        for query in range(4):
            for key in range(4):
                shown = query == key or (key < query and int(positions[row, key]) >= 0)
                assert float(mask[row, 0, query, key]) == (0.0 if shown else FLOOR)


def test_tree_mask() -> None:
    torch.manual_seed(0)
    lengths = [3, 0, 7]
    ancestors = torch.rand(3, 4, 4) < 0.5
    mask = tree_mask(ancestors, torch.tensor(lengths), 16, torch.float32)
    assert mask.shape == (3, 1, 4, 16)
    for row, length in enumerate(lengths):
        for query in range(4):
            for key in range(16):
                new = key - length
                shown = new < 0 or (new < 4 and bool(ancestors[row, query, new]))
                assert float(mask[row, 0, query, key]) == (0.0 if shown else FLOOR)


def test_tree_mask_of_one_shape_for_all_rows() -> None:
    lengths = torch.tensor([2, 5])
    chain = chain_ancestors(3, torch.device("cpu"))
    each = tree_mask(chain.expand(2, 3, 3), lengths, 8, torch.float32)
    assert torch.equal(tree_mask(chain, lengths, 8, torch.float32), each)


def test_committed_mask() -> None:
    mask = committed_mask(torch.tensor([0, 3]), 4, torch.bfloat16)
    assert mask.shape == (2, 1, 1, 4)
    assert (mask[:, 0, 0] == 0).tolist() == [[False] * 4, [True, True, True, False]]


def test_slots_written_by_slice_and_by_index_agree() -> None:
    key = torch.randn(2, 2, 3, 4)
    value = torch.randn(2, 2, 3, 4)
    for lengths in ([5, 5], [5, 2]):
        buffer = KVBuffer(1, 3, 2, 20, 4, torch.float32, torch.device("cpu"))
        slots = Slots.following(lengths, torch.tensor(lengths), 3)
        assert (slots.start is None) == (lengths[0] != lengths[1])
        buffer.write(0, slots, key, value)
        for row, length in enumerate(lengths):
            assert torch.equal(buffer.data[0, 0, row, :, length : length + 3], key[row])
            assert torch.equal(buffer.data[0, 1, row, :, length : length + 3], value[row])
        assert int((buffer.data != 0).sum()) == key.numel() + value.numel()


def test_prompts_are_written_from_slot_zero() -> None:
    prompts = Prompts.of([[4, 5, 6], [7]], 1, torch.float32, torch.device("cpu"))
    assert prompts.ids.tolist() == [[4, 5, 6], [0, 0, 7]]
    assert prompts.positions.tolist() == [[0, 1, 2], [-2, -1, 0]]
    buffer = KVBuffer(1, 3, 1, 16, 2, torch.float32, torch.device("cpu"))
    new = torch.arange(1.0, 13.0).view(2, 1, 3, 2)
    buffer.write(0, Slots.fresh(1, prompts.lengths, prompts.positions, buffer.spare), new, new)
    assert torch.equal(buffer.data[0, 0, 1, 0, :3], new[0, 0])
    assert torch.equal(buffer.data[0, 0, 2, 0, :1], new[1, 0, 2:])
    assert not buffer.data[0, 0, 0].any()
    assert not buffer.data[0, 0, 2, 0, 1:16].any()
    assert buffer.data[0, 0, 2, 0, buffer.spare].any()  # where padding goes, so that no slot is written twice
