"""The launchers: what `torch_ops` has, on CUDA tensors. No host synchronisation, no size taken from device values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddbench.plugins.kernels.bits import words_of
from ddbench.plugins.kernels.limits import MOST_DEPTH, worst_key
from ddbench.plugins.kernels.tiles import AttentionWorkspace
from ddbench.plugins.kernels.topk_launch import candidates
from ddbench.plugins.vllm.kernels.attention_launch import tree_attention
from ddbench.plugins.vllm.kernels.build import build
from ddbench.plugins.vllm.kernels.kv_table import KVTable
from ddbench.plugins.vllm.kernels.moves import move_cache, move_hidden
from ddbench.plugins.vllm.kernels.positions import shift
from ddbench.plugins.vllm.kernels.walk import follow
from ddbench.plugins.vllm.options import Options
from ddbench.plugins.vllm.state import TreeState

__all__ = [
    "AttentionWorkspace",
    "KVTable",
    "apply_trees",
    "cache_table",
    "candidates",
    "gather_rows",
    "move_kv",
    "tree_attention",
    "walk",
    "write_trees",
]

HIDDEN_COLUMNS = 1024
CACHE_COLUMNS = 512

cache_table = KVTable.of


def write_trees(state: TreeState, options: Options, log_probs: Tensor, ids: Tensor, slots: Tensor) -> Tensor:
    """As `torch_ops.write_trees`; NaN counts as -inf, unsorted candidates give some tree within bounds."""
    batch, drafted, k = log_probs.shape
    made = torch.empty(batch, options.nodes, dtype=torch.int32, device=log_probs.device)
    if batch == 0:
        return made
    levels = min(options.levels, drafted)
    width = min(k, options.candidates)
    build[(batch,)](
        log_probs,
        ids,
        slots,
        state.tokens,
        state.parents,
        state.depths,
        state.mask,
        made,
        *log_probs.stride(),
        *ids.stride(),
        NODES=options.nodes,
        LEVELS=levels,
        WIDTH=width,
        WORDS=words_of(options.nodes + 1),
        WORST=worst_key(options.min_log_prob),
        SPINE=int(options.force_spine),
        LANES=max(32, triton.next_power_of_2(options.nodes + 1)),
        LEVELS_PAD=triton.next_power_of_2(levels),
        WIDTH_PAD=triton.next_power_of_2(width),
        num_warps=1,
    )
    return made


def apply_trees(
    state: TreeState, rows: int, query_start_loc: Tensor, positions: Tensor, input_ids: Tensor | None
) -> None:
    """As `torch_ops.apply_trees`."""
    if rows == 0:
        return
    shift[(rows,)](
        state.row_slot,
        state.row_drafts,
        state.depths,
        state.tokens,
        query_start_loc,
        positions,
        positions if input_ids is None else input_ids,
        NODES=state.nodes,
        LANES=triton.next_power_of_2(state.nodes),
        WITH_TOKENS=input_ids is not None,
        num_warps=1,
    )


def walk(
    state: TreeState,
    rows: int,
    choices: Tensor,
    cu_sampled: Tensor,
    emitted: Tensor,
    query_start_loc: Tensor | None = None,
    positions: Tensor | None = None,
) -> None:
    """As `torch_ops.walk`."""
    if rows == 0:
        return
    restored = query_start_loc is not None and positions is not None
    follow[(rows,)](
        state.row_slot,
        state.row_drafts,
        state.tokens,
        state.parents,
        state.depths,
        state.path,
        query_start_loc if restored else cu_sampled,
        positions if restored else cu_sampled,
        choices,
        cu_sampled,
        emitted,
        emitted.stride(0),
        emitted.shape[1],
        NODES=state.nodes,
        LANES=triton.next_power_of_2(max(state.nodes + 1, emitted.shape[1], 32)),
        RESTORE=restored,
        num_warps=1,
    )


def move_kv(state: TreeState, rows: int, query_start_loc: Tensor, slot_mapping: Tensor, caches: KVTable) -> None:
    """As `torch_ops.move_kv`, all layers in one launch; ``caches`` from `cache_table`."""
    if rows == 0:
        return
    size_pad = triton.next_power_of_2(caches.size)
    heads = max(1, min(CACHE_COLUMNS // size_pad, triton.next_power_of_2(caches.heads)))
    move_cache[(rows, caches.layers, triton.cdiv(caches.heads, heads))](
        state.row_slot,
        state.row_drafts,
        state.path,
        query_start_loc,
        slot_mapping,
        caches.pointers,
        caches.stride_block,
        caches.stride_head,
        caches.stride_slot,
        caches.heads,
        ELEMENT={1: tl.int8, 2: tl.int16, 4: tl.int32}[caches.element],
        PAGE=caches.block_size,
        SIZE=caches.size,
        SIZE_PAD=size_pad,
        HEADS=heads,
        NODES=state.nodes,
        STEPS=_steps(state),
        num_warps=4,
    )


def gather_rows(state: TreeState, rows: int, query_start_loc: Tensor, hidden: Tensor) -> None:
    """As `torch_ops.gather_rows`."""
    if rows == 0:
        return
    if hidden.dim() != 2 or hidden.stride(1) != 1:
        raise ValueError(f"hidden={tuple(hidden.shape)}, strides {hidden.stride()}: needs [tokens, size], last dense")
    move_hidden[(rows, triton.cdiv(hidden.shape[1], HIDDEN_COLUMNS))](
        state.row_slot,
        state.row_drafts,
        state.path,
        query_start_loc,
        hidden,
        hidden.stride(0),
        hidden.shape[1],
        NODES=state.nodes,
        STEPS=_steps(state),
        COLUMNS=HIDDEN_COLUMNS,
        num_warps=4,
    )


def _steps(state: TreeState) -> int:
    """A power of two that no path is longer than."""
    return int(triton.next_power_of_2(min(state.nodes, MOST_DEPTH)))
