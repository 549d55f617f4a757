"""The attention kernel equals its torch twin, whatever the splits, and reads nothing that it must not."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from kernel_cases import DEVICES, Batch, batch, copy_of, either_layout, on_device
from torch import Tensor

from ddbench.plugins.kernels.tiles import Tile, tile_of
from ddbench.plugins.vllm import torch_ops
from ddbench.plugins.vllm.kernels import ops

# Against float32 on the same inputs: bfloat16 rounds the weights and the output, 8 bits each, float32 only sums.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


@dataclass
class Inputs:
    query: Tensor
    cache: Tensor
    table: Tensor
    lengths: Tensor


def inputs(
    case: Batch, context: list[int], heads: int, kv_heads: int, head: int, dtype: torch.dtype, page: int, by_head: bool
) -> Inputs:
    """Pages in random order; NaN wherever no token of a sequence lies."""
    generator = torch.Generator().manual_seed(sum(context))
    counts = case.query_start.diff()
    lengths = torch.tensor(context, dtype=torch.int32) + counts
    pages = (lengths + page - 1) // page
    blocks = int(pages.sum()) + 3
    order = torch.randperm(blocks, generator=generator)
    table = torch.full((case.rows, int(pages.max()) + 2), int(order[-1]), dtype=torch.int32)
    cache = either_layout(torch.empty, blocks, kv_heads, page, 2 * head, by_head).fill_(torch.nan)
    begin = 0
    for row in range(case.rows):
        own = order[begin : begin + int(pages[row])]
        begin += int(pages[row])
        table[row, : len(own)] = own
        at = torch.arange(int(lengths[row]))
        values = torch.randn(len(at), kv_heads, 2 * head, generator=generator)
        cache[own[at // page], :, at % page] = values
    query = torch.randn(case.tokens, heads, head, generator=generator)
    cache = either_layout(torch.empty, blocks, kv_heads, page, 2 * head, by_head).copy_(cache).to(dtype)
    return Inputs(query.to(dtype), cache, table, lengths)


def twin(case: Batch, given: Inputs, causal: bool, with_state: bool = True) -> Tensor:
    out = torch.full(given.query.shape, 7.0)
    torch_ops.tree_attention(
        case.state if with_state else None,
        given.query.float(),
        given.cache.float(),
        given.table,
        case.query_start,
        given.lengths,
        given.query.shape[2] ** -0.5,
        out,
        causal,
    )
    return out


def kernel(
    case: Batch,
    given: Inputs,
    device: str,
    splits: int | None,
    causal: bool = True,
    only_trees: bool = False,
    with_state: bool = True,
    tile: Tile | None = None,
) -> Tensor:
    query = given.query.to(device)
    out = torch.full_like(query, 7.0)
    workspace = ops.AttentionWorkspace.of(case.tokens, query.shape[1], query.shape[2], splits or 8, device)
    workspace.partial.fill_(torch.nan)
    workspace.lse.fill_(torch.nan)
    ops.tree_attention(
        copy_of(case.state, device) if with_state else None,
        query,
        given.cache.to(device),
        given.table.to(device),
        case.query_start.to(device),
        given.lengths.to(device),
        query.shape[2] ** -0.5,
        out,
        causal,
        max_query=int(case.query_start.diff().max()),
        only_trees=only_trees,
        workspace=workspace,
        splits=splits,
        tile=tile,
    )
    return out.float().cpu()


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


CONTEXTS = [[0, 1, 17, 300], [130, 5, 64, 127]]


HEADS = [(2, 2, 64), (8, 1, 32), (6, 2, 80), (3, 1, 128)]


def compare(device: str, nodes: int, heads: tuple[int, int, int], dtype: torch.dtype, seed: int) -> None:
    case = batch(nodes, seed)
    given = inputs(case, CONTEXTS[seed], *heads, dtype, page=16, by_head=bool(seed))
    expected = twin(case, given, causal=True)
    for splits in (1, 3) if device == "cpu" else (1, 2, 3, 8, 31, None):
        close(kernel(case, given, device, splits), expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_twin(device: str, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    on_device(device)
    for nodes in (1, 15, 33):
        compare(device, nodes, heads, dtype, seed=0)
    compare(device, 6, heads, dtype, seed=1)


@pytest.mark.parametrize("device", DEVICES)
def test_equals_the_twin_at_the_widest_window(device: str) -> None:
    on_device(device)
    compare(device, 127, (2, 1, 32), torch.float32, seed=1)


@pytest.mark.gpu
@pytest.mark.parametrize("nodes", [1, 6, 15, 31, 63, 127])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # the interpreter has no product of bfloat16
def test_equals_the_twin_on_a_gpu(nodes: int, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    on_device("cuda")
    for seed in range(2):
        compare("cuda", nodes, heads, dtype, seed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 4), (16, 4), (10, 2), (8, 1), (7, 1)])
@pytest.mark.parametrize("nodes", [1, 15, 31, 63, 64, 127])
@pytest.mark.gpu
def test_long_contexts(dtype: torch.dtype, heads: int, kv_heads: int, nodes: int) -> None:
    for head in (64, 128, 256):
        case = batch(nodes, head, kind="halves", block=16)
        given = inputs(case, [8190, 0, 2048, 4001], heads, kv_heads, head, dtype, page=32, by_head=True)
        expected = twin(case, given, causal=True)
        for splits in (1, 5, None):
            close(kernel(case, given, "cuda", splits), expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("page", [16, 48])
def test_without_a_mask_and_without_trees(device: str, splits: int, page: int) -> None:
    on_device(device)
    case = batch(15, 0)
    given = inputs(case, CONTEXTS[0], 4, 2, 64, torch.float32, page, by_head=False)
    close(kernel(case, given, device, splits, causal=False), twin(case, given, causal=False), torch.float32)
    for causal in (True, False):
        expected = twin(case, given, causal, with_state=False)
        close(kernel(case, given, device, splits, causal, with_state=False), expected, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("splits", [1, 4])
def test_rows_without_a_tree_are_left_alone_where_asked(device: str, splits: int) -> None:
    on_device(device)
    case = batch(15, 0)
    given = inputs(case, CONTEXTS[0], 4, 2, 64, torch.float32, 16, by_head=True)
    found, expected = kernel(case, given, device, splits, only_trees=True), twin(case, given, causal=True)
    trees = (case.state.row_slot[: case.rows] >= 0) & (case.state.row_drafts[: case.rows] > 0)
    assert 0 < int(trees.sum()) < case.rows
    of_tree = trees.repeat_interleave(case.query_start.diff())
    close(found[of_tree], expected[of_tree], torch.float32)
    assert (found[~of_tree] == 7.0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("splits", [1, 4])
def test_what_a_graph_is_captured_and_padded_with(device: str, splits: int) -> None:
    """Lengths shorter than the queries, rows of length 0 or of no tokens, more rows than slots, and a short query."""
    on_device(device)
    case = batch(7, 0, window_only=True)
    given = inputs(case, [200, 3, 40, 9], 4, 2, 64, torch.float32, 16, by_head=True)
    expected = twin(case, given, causal=True)
    given.lengths[1], given.lengths[2] = 3, 0
    given.lengths = torch.cat([given.lengths, torch.tensor([5, 0, 0, 0], dtype=torch.int32)])
    given.table = torch.cat([given.table, torch.zeros(4, given.table.shape[1], dtype=torch.int32)])
    case.query_start = torch.cat([case.query_start, case.query_start[-1:].expand(4)])
    found = kernel(case, given, device, splits)
    assert torch.isfinite(found).all()
    rows = [slice(int(a), int(b)) for a, b in zip(case.query_start[:4], case.query_start[1:5], strict=True)]
    close(found[rows[0]], expected[rows[0]], torch.float32)
    close(found[rows[3]], expected[rows[3]], torch.float32)
    assert (found[rows[1]][:5] == 0).all()  # eight queries, three positions: the first five see nothing
    assert (found[rows[2]] == 7.0).all()
    given.query = given.query[: case.tokens - 3]
    found = kernel(case, given, device, splits)
    close(found[rows[3]], expected[rows[3]][:-3], torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_unseen_values_have_no_weight(device: str) -> None:
    """A huge value at a node reaches its descendants and itself, and no other row of the window."""
    on_device(device)
    case = batch(15, 1, window_only=True)
    given = inputs(case, CONTEXTS[0], 2, 1, 64, torch.float32, 16, by_head=True)
    plain = kernel(case, given, device, 3)
    for node in (1, 4, 15):
        spoilt = Inputs(given.query, given.cache.clone(), given.table, given.lengths)
        for row in range(case.rows):
            at = int(given.lengths[row]) - 16 + node
            spoilt.cache[int(given.table[row, at // 16]), :, at % 16, 64:] = 1e30
        changed = (kernel(case, spoilt, device, 3) != plain).flatten(1).any(1).view(case.rows, 16)
        slots = case.state.row_slot[: case.rows].long()
        assert torch.equal(changed, torch_ops.unpack_bits(case.state.mask[slots], 16)[:, :, node])


def test_layouts_that_are_not_read_are_refused() -> None:
    case = batch(3, 0, rows=1)
    given = inputs(case, [4], 2, 1, 32, torch.float32, 16, by_head=True)
    wrong = [
        Inputs(given.query.transpose(1, 2).contiguous().transpose(1, 2), given.cache, given.table, given.lengths),
        Inputs(given.query, given.cache[..., :32], given.table, given.lengths),
        Inputs(given.query, given.cache.half(), given.table, given.lengths),
    ]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for each, said in zip(wrong, ("contiguous", "needs", "quantized"), strict=True):
        with pytest.raises(ValueError, match=said):
            kernel(case, each, device, 1)


@pytest.mark.parametrize("head", [32, 64, 80, 128, 192, 256])
@pytest.mark.parametrize("element", [2, 4])
@pytest.mark.parametrize("limit", [99 * 1024, 163 * 1024, 227 * 1024])
def test_a_tile_for_every_window(head: int, element: int, limit: int) -> None:
    for rows in (1, 16, 60, 512, 1024):
        tile = tile_of(rows, head, element, limit)
        assert 16 <= tile.m <= 128
        assert tile.n in (16, 32, 64)
