# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""Attention of the target's verify pass: windows of ``WIDTH`` tokens over their contexts, under the tree mask.

The queries that share a key-value head are stacked into one matrix of ``WIDTH * GROUP`` rows, so that keys and values
are read once a group and not once a head. All of its rows see all of the context, so that part needs no mask; in the
window a node sees what SGLang's own mask buffer says. Context and window are cut into tiles of ``BLOCK_N`` positions of
their own, dealt to programs as `kernels.softmax` says.

A step of the context needs its positions' slots before it can load keys and values. Read in the same step, they make
Triton's pipeline wait at the top of each step for loads that were issued at the end of the one before (as compiled by
3.6 for sm_90 with up to four stages), so that a step costs a whole trip to memory. Here each step reads the slots of
the next one and carries them in registers: keys and values then wait for no other load, and stay in flight while
earlier steps are computed.
"""

import triton
import triton.language as tl

from ddbench.plugins.kernels.softmax import absorb, join, scores, shares


@triton.jit(do_not_specialize=["m_blocks"])
def attend(
    query,
    window_keys,
    window_values,
    cache_keys,
    cache_values,
    kv_indptr,
    kv_indices,
    mask,
    mask_indptr,
    out,
    partial,
    partial_lse,
    scale,
    m_blocks,
    query_token,
    query_head,
    out_token,
    out_head,
    window_token,
    window_head,
    key_slot,
    key_head,
    value_slot,
    value_head,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (query blocks * key-value heads, rows, SPLITS). ``scale`` is the softmax scale times log2(e)."""
    kv_head = tl.program_id(0) // m_blocks
    row = tl.program_id(1)
    split = tl.program_id(2)
    heads = tl.num_programs(0) // m_blocks * GROUP

    first = tl.load(kv_indptr + row).to(tl.int64)
    past = (tl.load(kv_indptr + row + 1).to(tl.int64) - first).to(tl.int32)
    context_tiles = tl.cdiv(past, BLOCK_N)
    tiles = context_tiles + tl.cdiv(WIDTH, BLOCK_N)
    each, live = shares(tiles, SPLITS, LEAST)
    if split >= live:
        return
    from_tile = split * each
    to_tile = tl.minimum(from_tile + each, tiles)

    m = (tl.program_id(0) % m_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    local = m // GROUP
    head = kv_head * GROUP + m % GROUP
    real = local < WIDTH
    token = row.to(tl.int64) * WIDTH + local
    d = tl.arange(0, HEAD_PAD)
    in_head = d < HEAD
    shown = real[:, None] & in_head[None, :]
    q = tl.load(query + token[:, None] * query_token + head[:, None] * query_head + d[None, :], mask=shown, other=0.0)

    acc = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    n = tl.arange(0, BLOCK_N)
    keys = cache_keys + kv_head.to(tl.int64) * key_head
    values = cache_values + kv_head.to(tl.int64) * value_head

    at = from_tile * BLOCK_N + n
    slot = tl.load(kv_indices + first + at, mask=at < past, other=0).to(tl.int64)
    for _tile in tl.range(from_tile, tl.minimum(to_tile, context_tiles)):
        there = at < past
        held = there[:, None] & in_head[None, :]
        key_tile = tl.load(keys + slot[:, None] * key_slot + d[None, :], mask=held, other=0.0)
        value_tile = tl.load(values + slot[:, None] * value_slot + d[None, :], mask=held, other=0.0)
        at += BLOCK_N
        slot = tl.load(kv_indices + first + at, mask=at < past, other=0).to(tl.int64)
        found = tl.where(there[None, :], scores(q, key_tile, scale, PRECISION), float("-inf"))
        acc, top, total = absorb(acc, top, total, found, value_tile, False, PRECISION)

    line = mask + tl.load(mask_indptr + row) + local.to(tl.int64) * (past + WIDTH) + past
    own = row.to(tl.int64) * WIDTH * window_token + kv_head.to(tl.int64) * window_head
    for tile in tl.range(tl.maximum(from_tile, context_tiles), to_tile):
        j = (tile - context_tiles) * BLOCK_N + n
        inside = j < WIDTH
        held = inside[:, None] & in_head[None, :]
        place = own + j.to(tl.int64)[:, None] * window_token + d[None, :]
        key_tile = tl.load(window_keys + place, mask=held, other=0.0)
        value_tile = tl.load(window_values + place, mask=held, other=0.0)
        seen = tl.load(line[:, None] + j[None, :], mask=real[:, None] & inside[None, :], other=0) != 0
        found = tl.where(seen, scores(q, key_tile, scale, PRECISION), float("-inf"))
        acc, top, total = absorb(acc, top, total, found, value_tile, True, PRECISION)

    saw = total > 0.0
    acc = acc / tl.where(saw, total, 1.0)[:, None]
    if live == 1:
        place_out = token[:, None] * out_token + head[:, None] * out_head + d[None, :]
        tl.store(out + place_out, acc.to(out.dtype.element_ty), mask=shown)
    elif SPLITS > 1:
        entry = (token * heads + head) * SPLITS + split
        tl.store(partial + entry[:, None] * HEAD + d[None, :], acc, mask=shown)
        lse = tl.where(saw, top + tl.math.log2(tl.where(saw, total, 1.0)), float("-inf"))
        tl.store(partial_lse + entry, lse, mask=real)


@triton.jit
def merge(
    kv_indptr,
    out,
    partial,
    partial_lse,
    out_token,
    out_head,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Joins the splits of one token and key-value head. Grid: (key-value heads, WIDTH, rows)."""
    kv_head = tl.program_id(0)
    row = tl.program_id(2)
    past = (tl.load(kv_indptr + row + 1) - tl.load(kv_indptr + row)).to(tl.int32)
    _each, live = shares(tl.cdiv(past, BLOCK_N) + tl.cdiv(WIDTH, BLOCK_N), SPLITS, LEAST)
    if live <= 1:
        return
    g = tl.arange(0, GROUP_PAD)
    d = tl.arange(0, HEAD_PAD)
    in_group = g < GROUP
    shown = in_group[:, None] & (d < HEAD)[None, :]
    head = kv_head * GROUP + g
    token = row.to(tl.int64) * WIDTH + tl.program_id(1)
    entry = (token * (tl.num_programs(0) * GROUP) + head) * SPLITS
    place_out = token * out_token + head[:, None] * out_head + d[None, :]
    join(out, place_out, partial, partial_lse, entry, live, in_group, shown, d, GROUP_PAD, HEAD, HEAD_PAD, SPLITS_PAD)
