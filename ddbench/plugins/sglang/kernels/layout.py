# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""What the target's pass reads beside the tokens: positions, links and masks.

A mask is row after row of the batch a row-major block of ``WIDTH x (length + WIDTH)`` entries, as bytes or as bits;
where a block begins follows from the lengths on the device.
"""

import triton
import triton.language as tl


@triton.jit
def _entries(seq_lens, at, known, other, WIDTH: tl.constexpr):
    """Entries of the blocks of rows ``at``, those not ``known`` of ``other`` committed tokens."""
    return WIDTH * (tl.load(seq_lens + at, mask=known, other=other).to(tl.int64) + WIDTH)


@triton.jit
def _sees(bits, entry, j, shown, WORDS: tl.constexpr):
    """Whether entries of the window see its local index j."""
    word = tl.load(bits + entry * WORDS + j // 32, mask=shown, other=0)
    return (word >> (j % 32)) & 1


@triton.jit(do_not_specialize=["size"])
def lay_out(
    parents,
    depths,
    bits,
    seq_lens,
    positions,
    first_child,
    next_sibling,
    mask,
    size,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    LANES: tl.constexpr,
    ENTRIES: tl.constexpr,
    ROWS_PAD: tl.constexpr,
    WITH_MASK: tl.constexpr,
    WHOLE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Grid: (rows, chunks of ENTRIES entries of a window). ROWS_PAD is at least the rows, ``size`` the mask's end."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    own = i < WIDTH
    window = row * WIDTH
    length = tl.load(seq_lens + row).to(tl.int64)
    depth = tl.load(depths + window + i, mask=own, other=0)
    tl.store(positions + window + i, length + depth, mask=own)

    j = tl.arange(0, LANES)
    inside = j < WIDTH
    parent = tl.load(parents + window + i, mask=own, other=-1)
    parent_of = tl.load(parents + window + j, mask=inside, other=-1)
    child = parent_of[None, :] == i[:, None]
    first = tl.min(tl.where(child, j[None, :], LANES), 1)
    tl.store(first_child + window + i, tl.where(first < LANES, first, -1).to(tl.int64), mask=own)
    younger = (parent_of[None, :] == parent[:, None]) & (j[None, :] > i[:, None]) & (parent >= 0)[:, None]
    following = tl.min(tl.where(younger, j[None, :], LANES), 1)
    tl.store(next_sibling + window + i, tl.where(following < LANES, following, -1).to(tl.int64), mask=own)

    if WITH_MASK:
        r = tl.arange(0, ROWS_PAD)
        before = r < row
        start = tl.sum(tl.where(before, _entries(seq_lens, r, before, 0, WIDTH), 0), 0)
        line = start + i.to(tl.int64) * (length + WIDTH)
        shown = own[:, None] & inside[None, :]
        seen = _sees(bits, (window + i)[:, None], j[None, :], shown, WORDS)
        at_tree = (line + length)[:, None] + j[None, :]
        tl.store(mask + at_tree, seen.to(tl.int8), mask=shown & (at_tree < size))
        if WHOLE:
            column = tl.arange(0, CHUNK)
            ones = tl.full([ENTRIES, CHUNK], 1, tl.int8)
            for at in tl.range(0, length, CHUNK):
                context = own[:, None] & (at + column < length)[None, :]
                at_context = line[:, None] + (at + column)[None, :]
                tl.store(mask + at_context, ones, mask=context & (at_context < size))


@triton.jit(do_not_specialize=["rows", "fill"])
def pack(
    bits,
    seq_lens,
    packed,
    starts,
    rows,
    fill,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    ROWS_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid: (padded rows, programs that share a row's bytes). Rows from ``rows`` on are of ``fill`` tokens, all 1."""
    row = tl.program_id(0)
    r = tl.arange(0, ROWS_PAD)
    size = (_entries(seq_lens, r, r < rows, fill, WIDTH) + 7) // 8
    start = tl.sum(tl.where(r < row, size, 0), 0)
    own = tl.sum(tl.where(r == row, size, 0), 0)
    if tl.program_id(1) == 0:
        tl.store(starts + row, start.to(tl.int32))
        if row == tl.num_programs(0) - 1:
            tl.store(starts + row + 1, (start + own).to(tl.int32))

    real = row < rows
    length = tl.load(seq_lens + row, mask=real, other=0).to(tl.int32)
    length = tl.where(real, length, fill)
    line = length + WIDTH
    end = WIDTH * line
    window = row.to(tl.int64) * WIDTH
    for first in tl.range(tl.program_id(1) * BLOCK, own, tl.num_programs(1) * BLOCK):
        byte = (first + tl.arange(0, BLOCK)).to(tl.int32)
        value = tl.zeros([BLOCK], tl.int32)
        for place in tl.static_range(8):
            at = byte * 8 + place
            i = at // line
            j = at - i * line - length
            there = at < end
            tree = _sees(bits, window + i, tl.maximum(j, 0), there & (j >= 0), WORDS)
            seen = tl.where(j >= 0, tl.where(real, tree, 1), 1)
            value |= tl.where(there, seen, 0) << place
        tl.store(packed + start + byte, value.to(tl.uint8), mask=byte < own)
