# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""What the accepted path leaves: keys and values to the front of their window, features to rows of their own.

`move_cache` works in place: a program reads its columns of all entries that move, waits for itself, and writes them.
Sources and targets of one row overlap, and so no slot is overwritten before it was read; programs share no column, and
rows share no slot.
"""

import triton
import triton.language as tl


@triton.jit
def move_cache(
    path,
    slots,
    pointers,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    ELEMENT: tl.constexpr,
    SIZE: tl.constexpr,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid: (rows, buffers, chunks of COLUMNS elements). SIZE elements a slot; STEPS covers the path but its root."""
    row = tl.program_id(0).to(tl.int64)
    step = tl.arange(0, STEPS) + 1
    local = tl.load(path + row * BLOCK + step, mask=step < BLOCK, other=-1)
    moves = local > step  # an entry never stands before its depth
    if tl.sum(moves.to(tl.int32), 0) == 0:
        return
    taken = tl.load(slots + row * WIDTH + local, mask=moves, other=0).to(tl.int64)
    given = tl.load(slots + row * WIDTH + step, mask=moves, other=0).to(tl.int64)
    address = tl.multiple_of(tl.load(pointers + tl.program_id(1)), 16)
    cache = address.to(tl.pointer_type(ELEMENT), bitcast=True)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    shown = moves[:, None] & (column < SIZE)[None, :]
    values = tl.load(cache + taken[:, None] * SIZE + column[None, :], mask=shown, other=0)
    tl.debug_barrier()
    tl.store(cache + given[:, None] * SIZE + column[None, :], values, mask=shown)


@triton.jit
def gather_hidden(
    path,
    hidden,
    gathered,
    hidden_row,
    gathered_row,
    size,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid: (rows * BLOCK, chunks of COLUMNS columns)."""
    entry = tl.program_id(0).to(tl.int64)
    local = tl.maximum(tl.load(path + entry), 0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    values = tl.load(hidden + (entry // BLOCK * WIDTH + local) * hidden_row + column, mask=column < size, other=0)
    tl.store(gathered + entry * gathered_row + column, values, mask=column < size)
