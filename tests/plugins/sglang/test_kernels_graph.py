"""A whole round inside one CUDA graph: nothing waits for the host, and a replay obeys new inputs and new caps."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_kernels import on_device
from sgl_trees import TABLES, WALKED, case_of, draft, same

from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels import ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk

pytestmark = pytest.mark.gpu

CAPS = (None, Caps(4, 7, 9), Caps(12, 3, 14, None, True), Caps(1, 7, 7), Caps(12, 7, 15, -3.0))


@pytest.mark.parametrize("width", [16, 64, 128])
def test_a_captured_round_replays_on_new_trees_and_caps(width: int) -> None:
    on_device("cuda")
    rows, block, k, vocabulary, room = 5, 8, 12, 700, 5 * 128 + 7

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device="cuda")

    trees, out = Trees(rows + 2, width, block, "cuda"), Walk(rows + 2, block, "cuda")
    logits = zeros(rows * (block - 1), vocabulary, dtype=torch.bfloat16)
    roots, lens, requests = zeros(rows), zeros(rows), torch.arange(rows, device="cuda")
    table = torch.randperm(room * 3, device="cuda")[: rows * 340].view(rows, 340).to(torch.int32) % room
    blocks, chain, draft_slots = zeros(rows, block), zeros(rows, block), zeros(rows, block)
    slots, positions, choices = zeros(rows, width), zeros(rows, width), zeros(rows, width)
    mask = zeros(rows * width * (300 + width), dtype=torch.bool)
    packed, starts = zeros(mask.numel() // 8 + 8 * rows, dtype=torch.uint8), zeros(rows + 1, dtype=torch.int32)
    hidden = zeros(rows * width, 640, dtype=torch.bfloat16)
    gathered = zeros(rows * block, 640, dtype=torch.bfloat16)
    buffers = [zeros(room, 2, 64, dtype=torch.bfloat16) for _ in range(4)]
    moved = ops.kv_table(buffers)

    def a_round() -> None:
        ops.prepare(roots, lens, requests, table, 9, blocks, chain, draft_slots, slots)
        log_probs, ids = ops.candidates(logits, k)
        shards = [ops.shard_candidates(logits[:, at : at + 350], k) for at in (0, 350)]
        ops.merge(*(torch.stack(part) for part in zip(*shards, strict=True)))
        shape = (rows, block - 1, k)
        ops.build(trees, log_probs.view(shape), ids.view(shape), blocks[:, 0])
        ops.lay_out(trees, lens, positions, mask, whole=True)
        ops.write_packed_mask(trees, lens, packed, starts)
        ops.walk(trees, choices, lens, out)
        ops.move_kv(out, slots, moved)
        ops.gather_rows(out, hidden, gathered)

    lens.fill_(3)
    a_round()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        a_round()
        trees.limit(Caps(1, 1, 1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a_round()

    accepted = 0
    for seed, caps in enumerate(CAPS):
        caps = Caps(12, 7, width - 1) if caps is None else caps
        trees.limit(caps)
        case = case_of(width, seed, rows=rows, block=block, k=k, caps=caps, most=200)
        for name in ("first_child", "next_sibling", *TABLES):
            getattr(trees, name)[rows:].copy_(getattr(case.trees, name)[rows:])
        logits.copy_(draft(rows, block - 1, vocabulary, "smooth", seed).flatten(0, 1).flip(-1))
        roots.copy_(case.roots)
        lens.copy_(case.seq_lens)
        hidden.normal_()
        perm = torch.randperm(room, generator=case.generator)[: rows * width].view(rows, width)
        at = lens.cpu()[:, None] + torch.arange(width)
        table[torch.arange(rows)[:, None], at] = perm.to("cuda", torch.int32)  # the windows' slots are their own
        for buffer in buffers:
            buffer.normal_()
        before = [buffer.cpu() for buffer in buffers]

        log_probs, ids = torch_ops.candidates(logits.cpu(), k)
        found_log_probs, _ = ops.candidates(logits, k)  # whose rounding the trees follow
        torch.testing.assert_close(found_log_probs.cpu(), log_probs, atol=1e-5, rtol=1e-6)
        shape = (rows, block - 1, k)
        torch_ops.build(case.trees, found_log_probs.cpu().view(shape), ids.view(shape), case.roots)
        chosen = case.choices()
        choices.copy_(chosen)
        graph.replay()

        expected = Walk(rows + 2, block, "cpu")
        for name in WALKED:
            getattr(expected, name).copy_(getattr(out, name))
        places, bytes_mask = case.positions(), torch.zeros(mask.shape, dtype=torch.bool)
        torch_ops.lay_out(case.trees, case.seq_lens, places, bytes_mask, whole=True)
        used = int((width * (case.seq_lens + width)).sum())
        assert torch.equal(positions.cpu(), places)
        assert torch.equal(mask[:used].cpu(), bytes_mask[:used])
        same(trees, case.trees, (*TABLES, "first_child", "next_sibling"), note=caps)
        bits, bounds = torch.zeros(packed.shape, dtype=torch.uint8), torch.zeros(rows + 1, dtype=torch.int32)
        torch_ops.write_packed_mask(case.trees, case.seq_lens, bits, bounds)
        assert torch.equal(starts.cpu(), bounds)
        assert torch.equal(packed[: bounds[-1]].cpu(), bits[: bounds[-1]])
        torch_ops.walk(case.trees, chosen, case.seq_lens, expected)
        same(out, expected, WALKED, note=caps)
        torch_ops.move_kv(expected, perm, before)
        for one, other in zip(buffers, before, strict=True):
            assert torch.equal(one.cpu(), other)
        rows_of = torch.zeros(gathered.shape, dtype=torch.bfloat16)
        torch_ops.gather_rows(expected, hidden.cpu(), rows_of)
        assert torch.equal(gathered.cpu(), rows_of)
        accepted += int((expected.commit_lens[:rows] - 1).sum())
    assert accepted > 0
