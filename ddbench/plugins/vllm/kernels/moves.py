# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""What the accepted path leaves goes to the front of its window: rows of hidden states, keys and values.

A program reads its columns of all rows that move, waits for itself, and writes them: sources and targets overlap, and
so no row is overwritten before it was read. Programs share no column.
"""

import triton
import triton.language as tl


@triton.jit
def _moving(row_slot, row_drafts, path, query_start, row, NODES: tl.constexpr, STEPS: tl.constexpr):
    """For steps 1 .. STEPS of a row's path: index of the token to move, of the place, and whether it moves."""
    step = tl.arange(0, STEPS) + 1
    slot = tl.load(row_slot + row)
    drafts = tl.load(row_drafts + row)
    last = tl.where((slot >= 0) & (drafts > 0), NODES, 0)
    local = tl.load(path + row.to(tl.int64) * (NODES + 1) + step, mask=step <= last, other=-1)
    root = tl.load(query_start + row + 1) - 1 - drafts
    moves = (local > 0) & (local != step)
    return (root + local).to(tl.int64), (root + step).to(tl.int64), moves


@triton.jit
def move_hidden(
    row_slot,
    row_drafts,
    path,
    query_start,
    hidden,
    hidden_row,
    size,
    NODES: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid: (rows, chunks of COLUMNS columns)."""
    source, target, moves = _moving(row_slot, row_drafts, path, query_start, tl.program_id(0), NODES, STEPS)
    if tl.sum(moves.to(tl.int32), 0) == 0:
        return
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    shown = moves[:, None] & (column < size)[None, :]
    values = tl.load(hidden + source[:, None] * hidden_row + column[None, :], mask=shown, other=0)
    tl.debug_barrier()
    tl.store(hidden + target[:, None] * hidden_row + column[None, :], values, mask=shown)


@triton.jit
def move_cache(
    row_slot,
    row_drafts,
    path,
    query_start,
    slot_mapping,
    pointers,
    stride_block,
    stride_head,
    stride_slot,
    heads,
    ELEMENT: tl.constexpr,
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PAD: tl.constexpr,
    HEADS: tl.constexpr,
    NODES: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Grid: (rows, layers, chunks of HEADS heads). SIZE elements a head, keys and values; strides in elements."""
    source, target, moves = _moving(row_slot, row_drafts, path, query_start, tl.program_id(0), NODES, STEPS)
    if tl.sum(moves.to(tl.int32), 0) == 0:
        return
    address = tl.multiple_of(tl.load(pointers + tl.program_id(1)), 16)
    cache = address.to(tl.pointer_type(ELEMENT), bitcast=True)
    taken = tl.load(slot_mapping + source, mask=moves, other=0)
    given = tl.load(slot_mapping + target, mask=moves, other=0)
    column = tl.arange(0, HEADS * SIZE_PAD)
    head = tl.program_id(2) * HEADS + column // SIZE_PAD
    inner = column % SIZE_PAD
    shown = moves[:, None] & ((head < heads) & (inner < SIZE))[None, :]
    offset = head.to(tl.int64) * stride_head + inner
    where_from = (taken // PAGE) * stride_block + (taken % PAGE) * stride_slot
    where_to = (given // PAGE) * stride_block + (given % PAGE) * stride_slot
    values = tl.load(cache + where_from[:, None] + offset[None, :], mask=shown, other=0)
    tl.debug_barrier()
    tl.store(cache + where_to[:, None] + offset[None, :], values, mask=shown)
