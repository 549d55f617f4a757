"""The launchers: what `ddbench.plugins.sglang.torch_ops` has, on CUDA tensors.

Shapes, dtypes and meaning stand there. No host synchronisation, no size taken from device values, nothing allocated
but by `candidates`, `shard_candidates` and `merge`. Rows must stand one after another: ``choices``, ``positions``,
``slots``, ``block_ids`` and ``draft_slots`` are contiguous, ``seq_lens``, ``bonus`` and ``req_pool_indices`` too.
"""

from __future__ import annotations

from functools import cache

import torch
import triton.language as tl
from torch import Tensor

from ddbench.plugins.kernels.device import processors
from ddbench.plugins.kernels.tiles import power_of_2
from ddbench.plugins.kernels.topk_launch import best, candidates
from ddbench.plugins.sglang.kernels import build as _build
from ddbench.plugins.sglang.kernels import layout as _layout
from ddbench.plugins.sglang.kernels import moves as _moves
from ddbench.plugins.sglang.kernels import prepare as _prepare
from ddbench.plugins.sglang.kernels import walk as _walk
from ddbench.plugins.sglang.kernels import weigh as _weigh
from ddbench.plugins.sglang.kernels.buffers import Trees, Walk
from ddbench.plugins.sglang.kernels.kv_table import KVTable
from ddbench.plugins.sglang.torch_ops import merge

__all__ = [
    "KVTable",
    "build",
    "candidates",
    "gather_rows",
    "kv_table",
    "lay_out",
    "merge",
    "move_kv",
    "prepare",
    "shard_candidates",
    "walk",
    "weigh",
    "write_packed_mask",
]

shard_candidates = best
kv_table = KVTable.of

ENTRIES = 8  # of a window, that one program of the layout takes
MASK_CHUNK = 512  # columns of the context that it writes at once
PACK_BLOCK = 512  # bytes of a packed mask that a program makes at once
CACHE_COLUMNS = 256
HIDDEN_COLUMNS = 1024


def prepare(
    bonus: Tensor,
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    mask_token: int,
    block_ids: Tensor,
    positions: Tensor,
    draft_slots: Tensor,
    slots: Tensor,
) -> None:
    """As `torch_ops.prepare`; ``req_to_token`` dense in its rows."""
    rows, block = block_ids.shape
    if rows == 0:
        return
    _dense(
        bonus=bonus,
        seq_lens=seq_lens,
        block_ids=block_ids,
        positions=positions,
        draft_slots=draft_slots,
        slots=slots,
    )
    width = slots.shape[1]
    _prepare.fill_block[(rows,)](
        bonus,
        seq_lens,
        req_pool_indices,
        req_to_token,
        mask_token,
        block_ids,
        positions,
        draft_slots,
        slots,
        req_to_token.stride(0),
        req_to_token.shape[1],
        BLOCK=block,
        WIDTH=width,
        LANES=power_of_2(max(block, width)),
        num_warps=1,
    )


def build(trees: Trees, log_probs: Tensor, ids: Tensor, roots: Tensor) -> None:
    """As `torch_ops.build`; NaN counts as -inf, unsorted candidates give some tree within bounds."""
    rows, levels, k = log_probs.shape
    if rows == 0:
        return
    if rows > trees.rows or levels > trees.block - 1:
        raise ValueError(f"log_probs={tuple(log_probs.shape)}: needs at most [{trees.rows}, {trees.block - 1}, k]")
    width = trees.verify_width
    k = min(k, width - 1)  # a node of rank r has r earlier siblings in the tree
    _build.build[(rows,)](
        log_probs,
        ids,
        roots,
        trees.caps,
        trees.tokens,
        trees.parents,
        trees.depths,
        trees.bits,
        *log_probs.stride(),
        *ids.stride(),
        roots.stride(0),
        LEVELS=levels,
        CANDIDATES=k,
        WIDTH=width,
        WORDS=trees.bits.shape[2],
        LANES=_lanes(width),
        LEVELS_PAD=power_of_2(levels),
        CANDIDATES_PAD=power_of_2(k),
        num_warps=1,
    )


def lay_out(trees: Trees, seq_lens: Tensor, positions: Tensor, mask: Tensor | None = None, whole: bool = False) -> None:
    """As `torch_ops.lay_out`."""
    rows = seq_lens.shape[0]
    if rows == 0:
        return
    _dense(seq_lens=seq_lens, positions=positions)
    width = trees.verify_width
    written = trees.bits if mask is None else mask.view(torch.int8)
    _layout.lay_out[(rows, _parts(width, ENTRIES))](
        trees.parents,
        trees.depths,
        trees.bits,
        seq_lens,
        positions,
        trees.first_child,
        trees.next_sibling,
        written,
        written.numel(),
        WIDTH=width,
        WORDS=trees.bits.shape[2],
        LANES=_lanes(width),
        ENTRIES=ENTRIES,
        ROWS_PAD=power_of_2(trees.rows),
        WITH_MASK=mask is not None,
        WHOLE=whole,
        CHUNK=MASK_CHUNK,
        num_warps=4,
    )


def write_packed_mask(trees: Trees, seq_lens: Tensor, packed: Tensor, starts: Tensor, fill: int = 1) -> None:
    """As `torch_ops.write_packed_mask`; at most as many padded rows as ``trees`` has rows."""
    padded = starts.shape[0] - 1
    if padded == 0:
        return
    if padded > trees.rows:
        raise ValueError(f"starts={tuple(starts.shape)}: needs at most [{trees.rows + 1}]")
    _dense(seq_lens=seq_lens, packed=packed, starts=starts)
    _layout.pack[(padded, _parts(2 * processors(packed.device), padded))](
        trees.bits,
        seq_lens,
        packed,
        starts,
        seq_lens.shape[0],
        fill,
        WIDTH=trees.verify_width,
        WORDS=trees.bits.shape[2],
        ROWS_PAD=power_of_2(trees.rows),
        BLOCK=PACK_BLOCK,
        num_warps=4,
    )


def walk(trees: Trees, choices: Tensor, seq_lens: Tensor, out: Walk, forced: Tensor | None = None) -> None:
    """As `torch_ops.walk`."""
    rows = seq_lens.shape[0]
    if rows == 0:
        return
    _dense(choices=choices, seq_lens=seq_lens)
    _walk.follow[(rows,)](
        trees.tokens,
        trees.parents,
        trees.depths,
        trees.bits,
        choices,
        seq_lens,
        out.commit_lens if forced is None else forced,
        out.path,
        out.commit_lens,
        out.bonus,
        out.out_tokens,
        out.new_seq_lens,
        WIDTH=trees.verify_width,
        WORDS=trees.bits.shape[2],
        BLOCK=out.path.shape[1],
        LANES=_lanes(max(trees.verify_width, out.path.shape[1])),
        FORCED=forced is not None,
        num_warps=1,
    )


def move_kv(out: Walk, slots: Tensor, table: KVTable) -> None:
    """As `torch_ops.move_kv`, all layers in one launch; ``table`` from `kv_table`."""
    rows, width = slots.shape
    if rows == 0:
        return
    _dense(slots=slots)
    block = out.path.shape[1]
    for group in table.groups:
        element, size = _elements(group.slot_bytes)
        columns = min(CACHE_COLUMNS, power_of_2(size))
        _moves.move_cache[(rows, group.buffers, _parts(size, columns))](
            out.path,
            slots,
            group.pointers,
            BLOCK=block,
            WIDTH=width,
            ELEMENT=element,
            SIZE=size,
            STEPS=power_of_2(block - 1),
            COLUMNS=columns,
            num_warps=4,
        )


def gather_rows(out: Walk, hidden: Tensor, gathered: Tensor) -> None:
    """As `torch_ops.gather_rows`."""
    block = out.path.shape[1]
    if gathered.shape[0] == 0:
        return
    rows, size = gathered.shape[0] // block, gathered.shape[1]
    if hidden.stride(1) != 1 or gathered.stride(1) != 1 or hidden.shape[0] % rows or gathered.shape[0] % block:
        raise ValueError(
            f"hidden={tuple(hidden.shape)}, gathered={tuple(gathered.shape)}: needs dense [rows * n, size]"
        )
    _moves.gather_hidden[(gathered.shape[0], _parts(size, HIDDEN_COLUMNS))](
        out.path,
        hidden,
        gathered,
        hidden.stride(0),
        gathered.stride(0),
        size,
        BLOCK=block,
        WIDTH=hidden.shape[0] // rows,
        COLUMNS=HIDDEN_COLUMNS,
        num_warps=4,
    )


def weigh(trees: Trees, log_probs: Tensor, ids: Tensor, scores: Tensor, chain: Tensor) -> None:
    """As `torch_ops.weigh`; ``scores`` and ``chain`` dense in their rows."""
    rows, levels, k = log_probs.shape
    if rows == 0:
        return
    width = trees.verify_width
    _weigh.weigh[(rows,)](
        trees.tokens,
        trees.parents,
        trees.depths,
        log_probs,
        ids,
        scores,
        chain,
        *log_probs.stride(),
        *ids.stride(),
        LEVELS=levels,
        CANDIDATES=k,
        WIDTH=width,
        LANES=_lanes(width),
        num_warps=1,
    )


@cache
def _elements(slot_bytes: int) -> tuple[tl.dtype, int]:
    """What a slot is moved as: a type as wide as fits it, and how many of it."""
    kinds = ((4, tl.int32), (2, tl.int16), (1, tl.int8))
    return next((kind, slot_bytes // size) for size, kind in kinds if slot_bytes % size == 0)


def _parts(size: int, each: int) -> int:
    """Parts of ``each`` that hold ``size``; Triton's own function takes a microsecond or two."""
    return -(-size // each)


def _lanes(width: int) -> int:
    """Lanes of a warp's vectors over a window."""
    return max(32, power_of_2(width))


def _dense(**tensors: Tensor) -> None:
    """Raises ValueError where a tensor's rows do not stand one after another."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name}={tuple(tensor.shape)}, strides {tensor.stride()}: needs to be contiguous")
