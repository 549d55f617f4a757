"""How `attention.attend` is launched: tiles that fit the device's shared memory, and splits that fill the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from ddbench.plugins.kernels.bits import words_of
from ddbench.plugins.kernels.device import processors, shared_bytes
from ddbench.plugins.vllm.kernels.attention import attend, merge
from ddbench.plugins.vllm.state import TreeState

MOST_SPLITS = 32
LEAST_POSITIONS = 128  # of a split: below that, joining costs more than it saves
BLOCKS_PER_PROCESSOR = 2  # programs that one multiprocessor runs at once


@dataclass(frozen=True)
class Tile:
    """``m`` query rows and ``n`` positions a step; warps and pipeline stages of a program."""

    m: int
    n: int
    warps: int
    stages: int

    def bytes(self, head_pad: int, element: int) -> int:
        """Shared memory of queries, of the stages' keys and values, and of the weights of one step."""
        return element * (self.m * head_pad + 2 * self.n * head_pad * self.stages + self.m * self.n)


def tile_of(query_rows: int, head_size: int, element: int, limit: int) -> Tile:
    """The tile for ``query_rows`` stacked queries a key-value head, elements of ``element`` bytes.

    Raises ValueError where even the smallest does not fit into ``limit`` bytes.
    """
    head_pad = triton.next_power_of_2(head_size)
    m = min(max(triton.next_power_of_2(query_rows), 16), 32 if element == 4 else 128)
    if head_pad > 128:
        m = min(m, 64)
    # Measured on an H200 (docs/evidence/README.md): steps of 32 positions beat 64 by a quarter at a context of 256 and
    # are even with them at 2048. Stages overlap the next steps' loads with this step's products.
    for n, stages in ((32, 3), (32, 2), (32, 1), (16, 1)):
        tile = Tile(m, n, 4, stages)
        if tile.bytes(head_pad, element) <= limit - 1024:
            return tile
    raise ValueError(f"head_size={head_size}: no attention tile fits into {limit} bytes of shared memory")


@dataclass(frozen=True)
class AttentionWorkspace:
    """Partial results of splits, float32: ``entries`` of a token's one split, over all heads."""

    partial: Tensor  # [entries, heads, head_size], in memory [token, head, split, head_size]
    lse: Tensor  # [entries, heads]
    entries: int

    @classmethod
    def of(
        cls, max_tokens: int, heads: int, head_size: int, splits: int, device: torch.device | str
    ) -> AttentionWorkspace:
        """Room for ``splits`` splits of ``max_tokens`` tokens; fewer tokens may have more splits, more tokens fewer."""
        entries = max(1, max_tokens * splits)
        return cls(
            partial=torch.empty(entries, heads, head_size, dtype=torch.float32, device=device),
            lse=torch.empty(entries, heads, dtype=torch.float32, device=device),
            entries=entries,
        )

    def splits_for(self, tokens: int) -> int:
        return max(1, self.entries // max(tokens, 1))


def splits_of(programs: int, device: torch.device) -> int:
    """Splits that fill the device once where ``programs`` programs alone do not."""
    return min(MOST_SPLITS, max(1, BLOCKS_PER_PROCESSOR * processors(device) // max(programs, 1)))


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
        splits = min(room, splits_of(rows * kv_heads * m_blocks, device) if splits is None else splits)
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
            **shares,
            **trees,
            num_warps=1 if group * head_size <= 256 else 4,
        )
