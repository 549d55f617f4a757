"""Block, layout, masks, walk and moves equal their torch twins."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_kernels import DEVICES, on_device
from sgl_trees import TABLES, WALKED, case_of, copy_of, copy_walk, same, walked

from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels import ops
from ddbench.plugins.sglang.kernels.buffers import Walk

ON_GPU = pytest.mark.gpu
WIDTHS = [2, 16, 33, 64, 128]
SOME_WIDTHS = [2, pytest.param(16, marks=ON_GPU), 33, pytest.param(64, marks=ON_GPU), 128]
LINKS = ("first_child", "next_sibling")


def seeds(device: str) -> range:
    return range(2 if device == "cpu" else 30)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("width", "block"), [(16, 16), (4, 8), (64, 16), (33, 2)])
def test_the_block_and_its_slots(device: str, width: int, block: int) -> None:
    on_device(device)
    table = torch.randint(1, 9999, (6, 150), dtype=torch.int32)
    lens, requests = torch.tensor([1, 40, 140, 149]), torch.tensor([5, 0, 3, 1])
    outs = [torch.full((4, size), -1) for size in (block, block, block, width)]
    found = [out.to(device) for out in outs]
    bonus = torch.tensor([7, 0, 151_000, 3])
    torch_ops.prepare(bonus, lens, requests, table, 99, *outs)
    for dtype in (torch.int64, torch.int32):
        arguments = (bonus.to(device), lens.to(device, dtype), requests.to(device, dtype), table.to(device))
        ops.prepare(*arguments, 99, *found)
        for one, other in zip(found, outs, strict=True):
            assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", SOME_WIDTHS)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_positions_links_and_masks(device: str, width: int, dtype: torch.dtype) -> None:
    on_device(device)
    for seed in seeds(device):
        most = 60 if device == "cpu" else 1500
        case = case_of(width, seed, kind=("smooth", "whole", "cut")[seed % 3], most=most)
        size = case.rows * width * (most + width) + 5
        for whole in (False, True):
            positions, mask = case.positions(), torch.full((size,), 7).to(dtype)
            trees = copy_of(case.trees, device)
            found, found_mask = positions.to(device), mask.to(device)
            torch_ops.lay_out(case.trees, case.seq_lens, positions, mask, whole)
            ops.lay_out(trees, case.seq_lens.to(device), found, found_mask, whole)
            assert torch.equal(found.cpu(), positions)
            assert torch.equal(found_mask.cpu(), mask)
            same(trees, case.trees, (*TABLES, *LINKS))
        found.fill_(0)
        ops.lay_out(trees, case.seq_lens.to(device, torch.int32), found)
        assert torch.equal(found.cpu(), positions)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 3])
def test_nothing_is_written_beyond_the_mask(device: str, rows: int) -> None:
    """Batches that end at a context's edge, the sequences' last and one more round: cut off where the mask ends."""
    on_device(device)
    width, context = 33, 70
    size = rows * width * (context + width)
    case = case_of(width, 0, rows=rows)
    trees, cut = copy_of(case.trees, device), 0
    for begins in range(context - 8, context + 9, 4):
        lens = torch.full((rows,), begins)
        exact = torch.zeros(rows * width * (begins + width), dtype=torch.uint8)
        for whole in (False, True):
            expected, around = (torch.full((size + 9000,), 7, dtype=torch.uint8) for _ in range(2))
            around = around.to(device)
            torch_ops.lay_out(case.trees, lens, case.positions(), expected[:size], whole)
            ops.lay_out(trees, lens.to(device), case.positions().to(device), around[:size], whole)
            assert (expected[size:] == 7).all()
            assert torch.equal(around.cpu(), expected)
            torch_ops.lay_out(case.trees, lens, case.positions(), exact, whole)
            if not whole:
                continue
            kept = min(size, exact.numel())
            assert torch.equal(expected[:kept], exact[:kept]), "what is inside is as ever"
            cut += exact.numel() > size
    assert cut > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", SOME_WIDTHS)
def test_packed_masks(device: str, width: int) -> None:
    on_device(device)
    for seed in seeds(device):
        case = case_of(width, seed, kind=("smooth", "cut")[seed % 2], most=60 if device == "cpu" else 1500)
        sizes = [width * (length + width) for length in case.seq_lens.tolist()]
        room = sum(sizes) // 8 + 2 * width * width + 99
        for fill in (1, 3) if device == "cuda" else (1 + 2 * seed,):
            packed, starts = torch.full((room,), 99, dtype=torch.uint8), torch.zeros(6, dtype=torch.int32)
            found, found_starts = packed.to(device), starts.to(device)
            torch_ops.write_packed_mask(case.trees, case.seq_lens, packed, starts, fill)
            ops.write_packed_mask(copy_of(case.trees, device), case.seq_lens.to(device), found, found_starts, fill)
            assert torch.equal(found_starts.cpu(), starts)
            assert torch.equal(found.cpu(), packed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_walk(device: str, width: int) -> None:
    on_device(device)
    accepted = 0
    for seed in seeds(device):
        case = case_of(width, seed, kind=("smooth", "whole")[seed % 2])
        trees = copy_of(case.trees, device)
        for forced in (None, torch.tensor([4, 0, 8], dtype=torch.int32)):
            chosen = case.choices()
            expected, found = (Walk(5, case.trees.block, where) for where in ("cpu", device))
            for name in WALKED:
                getattr(expected, name).fill_(55)
                getattr(found, name).fill_(55)
            torch_ops.walk(case.trees, chosen, case.seq_lens, expected, forced)
            on = None if forced is None else forced.to(device)
            ops.walk(trees, chosen.to(device), case.seq_lens.to(device), found, on)
            same(found, expected, WALKED, note=(seed, forced))
            accepted += int((expected.commit_lens[:3] - 1).sum())
    assert accepted > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("block", [2, 13, 17])
def test_the_walk_goes_as_deep_as_a_block(device: str, block: int) -> None:
    on_device(device)
    case = case_of(max(2, block), 0, rows=2, block=block, k=1)
    chosen = case.trees.tokens[:2].roll(-1, 1)
    chosen[:, -1] = 49
    expected, found = (Walk(4, block, where) for where in ("cpu", device))
    torch_ops.walk(case.trees, chosen, case.seq_lens, expected)
    ops.walk(copy_of(case.trees, device), chosen.to(device), case.seq_lens.to(device), found)
    assert expected.commit_lens[:2].tolist() == [block, block]
    same(found, expected, WALKED)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_keys_and_values_move_in_every_buffer(device: str, width: int, dtype: torch.dtype) -> None:
    on_device(device)
    moved = 0
    for seed in seeds(device):
        case = case_of(width, seed, kind="whole", rows=4)
        out = walked(case)
        room = 4 * width + 9
        slots = case.slots(room)
        shapes = [(2, 64), (2, 64), (3, 96), (5, 7)]  # unequal keys and values, and an odd size
        buffers = [torch.randint(0, 255, (room, *shape), dtype=torch.uint8) for shape in shapes]
        typed = [buffer.to(torch.float32).to(dtype) for buffer in buffers]
        found = [buffer.to(device, copy=True) for buffer in typed]
        raw = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
        before = [buffer.clone() for buffer in typed]
        torch_ops.move_kv(out, slots, [buffer.view(raw) for buffer in typed])
        ops.move_kv(copy_walk(out, device), slots.to(device), ops.kv_table(found))
        for one, other, was in zip(found, typed, before, strict=True):
            assert torch.equal(one.cpu().view(raw), other.view(raw))
            moved += int((other.view(raw) != was.view(raw)).sum())
    assert moved > 0 or width == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_chain_of_windows_that_all_overlap_moves_whole(device: str) -> None:
    """Every entry of the path but the root moves by one: each target is the next one's source."""
    on_device(device)
    out = Walk(1, 17, "cpu")
    out.path[0] = torch.tensor([0, *range(2, 18)])
    slots = torch.randperm(40)[:20].view(1, 20)
    buffer = torch.arange(40 * 8, dtype=torch.float32).view(40, 8)
    found = buffer.to(device, copy=True)
    expected = buffer.clone()
    expected[slots[0, 1:17]] = buffer[slots[0, 2:18]]
    ops.move_kv(copy_walk(out, device), slots.to(device), ops.kv_table([found]))
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [2, 33, 128])
def test_features_of_the_path(device: str, width: int) -> None:
    on_device(device)
    for seed in seeds(device):
        case = case_of(width, seed, kind="whole")
        out = walked(case)
        hidden = torch.randn(case.rows * width, 1100).to(torch.bfloat16)
        expected, found = (torch.zeros(case.rows * 8, 1100, dtype=torch.bfloat16, device=d) for d in ("cpu", device))
        torch_ops.gather_rows(out, hidden, expected)
        ops.gather_rows(copy_walk(out, device), hidden.to(device), found)
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_shards_of_a_vocabulary(device: str, dtype: torch.dtype) -> None:
    on_device(device)
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(4, 320, generator=generator) * 3).to(dtype)
    logits[1] = 0.0
    expected = torch_ops.shard_candidates(logits[:, :160], 16)
    found = ops.shard_candidates(logits.to(device)[:, :160], 16)
    assert torch.equal(found[0].cpu(), expected[0])
    assert torch.equal(found[1].cpu(), expected[1])
    torch.testing.assert_close(found[2].cpu(), expected[2])
    whole = ops.candidates(logits.to(device), 16)
    parts = [ops.shard_candidates(logits.to(device)[:, at : at + 160], 16) for at in (0, 160)]
    values, lse = torch.stack([part[0] for part in parts]), torch.stack([part[2] for part in parts])
    merged = ops.merge(values, torch.stack([parts[0][1], parts[1][1] + 160]), lse)
    assert torch.equal(merged[1], whole[1])
    torch.testing.assert_close(merged[0], whole[0])


@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_batch_and_buffers_that_cannot_be(device: str) -> None:
    on_device(device)
    case = case_of(8, 0)
    trees, out = copy_of(case.trees, device), Walk(5, 8, device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    ops.build(trees, torch.zeros(0, 7, 4, device=device), torch.zeros(0, 7, 4, device=device).int(), none)
    ops.lay_out(trees, none, none.view(0, 8))
    ops.walk(trees, none.view(0, 8), none, out)
    buffer = torch.zeros(9, 4, device=device)
    ops.move_kv(out, none.view(0, 8), ops.kv_table([buffer]))
    ops.gather_rows(out, buffer, buffer[:0])
    with pytest.raises(ValueError, match="no KV buffer"):
        ops.kv_table([])
    with pytest.raises(ValueError, match="dense"):
        ops.kv_table([torch.zeros(4, 9, device=device).t()])
    with pytest.raises(ValueError, match="contiguous"):
        ops.walk(trees, torch.zeros(8, 2, dtype=torch.int64, device=device).t(), none.new_zeros(2), out)
