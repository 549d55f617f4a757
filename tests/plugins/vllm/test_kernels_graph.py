"""A whole round inside one CUDA graph: nothing waits for the host, and a replay works on new trees."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from kernel_cases import TABLES, batch, choices_along, copy_of, on_device, same
from trees import draft

from ddbench.plugins.vllm import torch_ops
from ddbench.plugins.vllm.kernels import ops

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("nodes", [15, 63, 127])
def test_a_captured_round_replays_on_new_trees(nodes: int) -> None:
    on_device("cuda")
    rows, k, vocabulary, heads, kv_heads, head = 4, min(nodes, 24), 700, 8, 2, 64
    case = batch(nodes, 0, window_only=True)
    state = copy_of(case.state, "cuda")
    slots = torch.arange(rows, device="cuda")
    logits = torch.randn(rows * 7, vocabulary, device="cuda")
    choices = torch.zeros(case.tokens, dtype=torch.int64, device="cuda")
    sampled = case.query_start[1:].cuda()
    start = case.query_start.cuda()
    positions = torch.zeros(case.tokens, dtype=torch.int64, device="cuda")
    inputs = torch.zeros(case.tokens, dtype=torch.int32, device="cuda")
    emitted = torch.zeros(rows, nodes + 1, dtype=torch.int32, device="cuda")
    hidden = torch.zeros(case.tokens, 256, dtype=torch.bfloat16, device="cuda")
    pages = (100 + nodes + 1 + 15) // 16
    cache = torch.zeros(rows * pages, kv_heads, 16, 2 * head, dtype=torch.bfloat16, device="cuda")
    table = torch.arange(rows * pages, dtype=torch.int32, device="cuda").view(rows, pages)
    lengths = torch.full((rows,), 100 + nodes + 1, dtype=torch.int32, device="cuda")
    mapping = (torch.arange(rows)[:, None] * pages * 16 + 100 + torch.arange(nodes + 1)).flatten().cuda()
    query = torch.zeros(case.tokens, heads, head, dtype=torch.bfloat16, device="cuda")
    out = torch.zeros_like(query)
    workspace = ops.AttentionWorkspace.of(case.tokens, heads, head, 8, "cuda")
    caches = ops.cache_table([cache])

    def a_round() -> None:
        log_probs, ids = ops.candidates(logits, k)
        ops.write_trees(state, case.options, log_probs.view(rows, 7, k), ids.view(rows, 7, k), slots)
        ops.apply_trees(state, rows, start, positions, inputs)
        ops.tree_attention(
            state, query, cache, table, start, lengths, 0.125, out, max_query=nodes + 1, workspace=workspace
        )
        ops.walk(state, rows, choices, sampled, emitted, start, positions)
        ops.move_kv(state, rows, start, mapping, caches)
        ops.gather_rows(state, rows, start, hidden)

    state.row_slot[:rows] = slots.to(torch.int32)
    a_round()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        a_round()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a_round()
    for seed in range(5):
        logits.copy_(draft(rows, 7, vocabulary, "smooth", seed).flatten(0, 1).flip(-1))
        twin = copy_of(state)
        log_probs, ids = torch_ops.candidates(logits.cpu(), k)
        torch_ops.write_trees(twin, case.options, log_probs.view(rows, 7, k), ids.view(rows, 7, k), slots.cpu())
        case.state = twin
        chosen, cu_sampled = choices_along(case, seed)
        choices.copy_(chosen)
        hidden.normal_()
        cache.normal_()
        query.normal_()
        given = {"hidden": hidden.cpu(), "cache": cache.cpu()}
        expected_emitted = torch.empty(rows, nodes + 1, dtype=torch.int32)
        expected_out = torch.empty(query.shape)
        arguments = (table.cpu(), case.query_start, lengths.cpu(), 0.125, expected_out)
        torch_ops.tree_attention(twin, query.cpu().float(), cache.cpu().float(), *arguments)
        torch_ops.walk(twin, rows, chosen, cu_sampled, expected_emitted)
        torch_ops.move_kv(twin, rows, case.query_start, mapping.cpu(), [given["cache"]])
        torch_ops.gather_rows(twin, rows, case.query_start, given["hidden"])
        graph.replay()
        same(state, twin, seed, TABLES)
        assert torch.equal(emitted.cpu(), expected_emitted)
        assert not positions.any()
        assert torch.equal(hidden.cpu(), given["hidden"])
        assert torch.equal(cache.cpu(), given["cache"])
        torch.testing.assert_close(out.float().cpu(), expected_out, atol=1.5e-2, rtol=1.5e-2)
    assert (emitted[:, 1:] >= 0).any()
