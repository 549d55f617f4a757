"""How `attention.attend` is launched."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from ddbench.plugins.kernels.bits import words_of
from ddbench.plugins.kernels.device import processors, shared_bytes
from ddbench.plugins.kernels.tiles import LEAST_POSITIONS, AttentionWorkspace, Tile, splits_of, tile_of
from ddbench.plugins.vllm.kernels.attention import attend, merge
from ddbench.plugins.vllm.state import TreeState


def tree_attention(
    state: TreeState | None,
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    out: Tensor,
    causal: bool = True,
    *,
    max_query: int | None = None,
    only_trees: bool = False,
    workspace: AttentionWorkspace | None = None,
    tile: Tile | None = None,
    splits: int | None = None,
) -> None:
    """As `torch_ops.tree_attention`, and:

    Args:
        max_query: at least the tokens of the longest row to be computed; None: all tokens of the batch.
        only_trees: leaves rows without a tree as they are in ``out``.
        workspace: where splits put their parts; None: no splits.
        tile, splits: for measurements; None: chosen.

    Safe for whatever a CUDA graph is captured or padded with: rows of no tokens or of length 0 are left as they are,
    tokens that see nothing are 0.

    Raises ValueError for layouts that the kernel does not read.
    """
    tokens, heads, head_size = query.shape
    kv_heads, page = cache.shape[1], cache.shape[2]
    for name, tensor in (("query", query), ("out", out), ("cache", cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: the last dimension must be contiguous, its stride is {tensor.stride(-1)}")
    if cache.shape[3] != 2 * head_size or heads % kv_heads:
        raise ValueError(f"cache={tuple(cache.shape)}: needs [blocks, kv_heads, size, {2 * head_size}], heads={heads}")
    if cache.dtype != query.dtype:
        raise ValueError(f"cache is {cache.dtype}, query {query.dtype}: a quantized cache is not read")
    rows = seq_lens.shape[0]
    if rows == 0 or tokens == 0:
        return
    device = query.device
    group = heads // kv_heads
    most = min(tokens, tokens if max_query is None else max_query)
    tile = tile or tile_of(most * group, head_size, query.element_size(), shared_bytes(device))
    m_blocks = triton.cdiv(most * group, tile.m)
    if workspace is None:
        splits = 1
    else:
        room = workspace.splits_for(tokens)
        splits = min(room, splits_of(rows * kv_heads * m_blocks, processors(device)) if splits is None else splits)
    shape = {"GROUP": group, "HEAD": head_size, "HEAD_PAD": triton.next_power_of_2(head_size)}
    shares = {"BLOCK_N": tile.n, "SPLITS": splits, "LEAST": max(1, LEAST_POSITIONS // tile.n)}
    trees = {"HAS_STATE": state is not None, "ONLY_TREES": only_trees and state is not None}
    if only_trees and state is None:
        return
    row_slot = block_table if state is None else state.row_slot
    row_drafts = block_table if state is None else state.row_drafts
    mask = block_table if state is None else state.mask
    slots = 0 if state is None else state.slots
    width = 1 if state is None else state.nodes + 1
    partial, lse = (out, out) if workspace is None else (workspace.partial, workspace.lse)
    attend[(m_blocks * kv_heads, rows, splits)](
        query,
        cache,
        block_table,
        query_start_loc,
        seq_lens,
        row_slot,
        row_drafts,
        mask,
        out,
        partial,
        lse,
        scale * math.log2(math.e),
        tokens,
        slots,
        m_blocks,
        query.stride(0),
        query.stride(1),
        out.stride(0),
        out.stride(1),
        cache.stride(0),
        cache.stride(1),
        cache.stride(2),
        block_table.stride(0),
        **shape,
        PAGE=page,
        WIDTH=width,
        WORDS=words_of(width),
        BLOCK_M=tile.m,
        **shares,
        CAUSAL=causal,
        **trees,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if splits > 1:
        merge[(kv_heads, most, rows)](
            query_start_loc,
            seq_lens,
            row_slot,
            row_drafts,
            out,
            partial,
            lse,
            tokens,
            slots,
            out.stride(0),
            out.stride(1),
            **shape,
            GROUP_PAD=triton.next_power_of_2(group),
            SPLITS_PAD=triton.next_power_of_2(splits),
            **shares,
            **trees,
            num_warps=1 if group * head_size <= 256 else 4,
        )
