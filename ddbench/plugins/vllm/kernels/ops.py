"""The launchers: what `torch_ops` has, on CUDA tensors. No host synchronisation, no size taken from device values."""

from __future__ import annotations

import math
import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from ddbench.plugins.vllm.kernels.attention_launch import AttentionWorkspace, tree_attention
from ddbench.plugins.vllm.kernels.build import build
from ddbench.plugins.vllm.kernels.kv_table import KVTable
from ddbench.plugins.vllm.kernels.moves import move_cache, move_hidden
from ddbench.plugins.vllm.kernels.positions import shift
from ddbench.plugins.vllm.kernels.topk import choose, scan
from ddbench.plugins.vllm.kernels.walk import follow
from ddbench.plugins.vllm.options import MOST_DEPTH, Options
from ddbench.plugins.vllm.state import TreeState, words_of

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

SCAN_BLOCK = 8192  # entries that one program of the scan reads
HIDDEN_COLUMNS = 1024
CACHE_COLUMNS = 512
LOWEST_FINITE = -0x00800001  # key of the lowest score above -inf

cache_table = KVTable.of


def candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `torch_ops.candidates`; log-probabilities to float32 rounding of the sum, ids exactly."""
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    group = 64 if k <= 64 else 32
    groups, chunks = triton.cdiv(vocabulary, group), triton.cdiv(vocabulary, SCAN_BLOCK)
    picked = min(k, groups)
    k_pad, picked_pad = triton.next_power_of_2(k), triton.next_power_of_2(picked)
    bits = 16 if logits.dtype == torch.bfloat16 else 32

    def new(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    log_probs, ids = new(rows, k, dtype=torch.float32), new(rows, k)
    if rows == 0:
        return log_probs, ids
    keys, maxima, sums = (
        new(rows, groups),
        new(rows, chunks, dtype=torch.float32),
        new(rows, chunks, dtype=torch.float32),
    )
    sizes = (logits.stride(0), vocabulary, groups, chunks)
    scan[(rows, chunks)](logits, keys, maxima, sums, *sizes, GROUP=group, BLOCK=SCAN_BLOCK, BITS=bits, num_warps=8)
    choose[(rows,)](
        logits,
        keys,
        maxima,
        sums,
        new(rows, picked_pad),
        new(rows, k_pad, dtype=torch.float32),
        new(rows, k_pad),
        log_probs,
        ids,
        *sizes,
        K=k,
        K_PAD=k_pad,
        PICKED=picked,
        PICKED_PAD=picked_pad,
        GROUP=group,
        GROUPS_PAD=triton.next_power_of_2(groups),
        CHUNKS_PAD=triton.next_power_of_2(chunks),
        BITS=bits,
        num_warps=8,
    )
    return log_probs, ids


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
        SPINE=options.force_spine,
        LANES=max(32, triton.next_power_of_2(options.nodes + 1)),
        LEVELS_PAD=triton.next_power_of_2(levels),
        WIDTH_PAD=triton.next_power_of_2(width),
        num_warps=1,
    )
    return made


def worst_key(min_log_prob: float | None) -> int:
    """Key of the lowest score that is a node: that of the float32 floor, or of the lowest finite number."""
    if min_log_prob is None or math.isinf(min_log_prob):
        return LOWEST_FINITE
    floor = torch.tensor(min_log_prob, dtype=torch.float32).item()
    if floor == 0.0:
        return -0x80000000
    return min(int(struct.unpack("<i", struct.pack("<f", floor))[0]) if math.isfinite(floor) else 0, LOWEST_FINITE)


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
