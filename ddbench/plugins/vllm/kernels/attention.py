# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""Paged attention of verify windows, split over the sequence: an online softmax, and the merge of the splits.

The queries of a row that share a key-value head are stacked into one matrix of ``max_query * GROUP`` rows. All of its
rows see the context up to the root, so that part needs no mask; in the window a node sees the ancestors that its mask
words name. A sequence is cut into tiles of ``BLOCK_N`` positions, dealt to programs as `kernels.softmax` says.
"""

import triton
import triton.language as tl

from ddbench.plugins.kernels.softmax import absorb, join, scores, shares


@triton.jit
def _row_tree(row_slot, row_drafts, row, slots, HAS_STATE: tl.constexpr):
    """Slot of the tree that a row verifies and its nodes; -1 and 0 for none."""
    slot = row * 0 - 1
    drafts = row * 0
    if HAS_STATE:
        known = row < slots
        slot = tl.load(row_slot + row, mask=known, other=-1)
        drafts = tl.load(row_drafts + row, mask=known, other=0)
        drafts = tl.where(slot >= 0, drafts, 0)
    return slot, drafts


@triton.jit(do_not_specialize=["tokens", "slots", "m_blocks"])
def attend(
    query,
    cache,
    block_table,
    query_start,
    seq_lens,
    row_slot,
    row_drafts,
    mask,
    out,
    partial,
    partial_lse,
    scale,
    tokens,
    slots,
    m_blocks,
    query_token,
    query_head,
    out_token,
    out_head,
    cache_block,
    cache_head,
    cache_slot,
    table_row,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    LEAST: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_STATE: tl.constexpr,
    ONLY_TREES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (query blocks * key-value heads, rows, SPLITS). ``scale`` is the softmax scale times log2(e)."""
    kv_head = tl.program_id(0) // m_blocks
    first = (tl.program_id(0) % m_blocks) * BLOCK_M // GROUP
    row = tl.program_id(1)
    split = tl.program_id(2)
    kv_heads = tl.num_programs(0) // m_blocks

    begin = tl.load(query_start + row)
    queries = tl.load(query_start + row + 1) - begin
    length = tl.load(seq_lens + row)
    slot, drafts = _row_tree(row_slot, row_drafts, row, slots, HAS_STATE)
    if ONLY_TREES and drafts <= 0:
        return
    if (queries <= first) | (length <= 0):
        return
    tiles = tl.cdiv(length, BLOCK_N)
    each, live = shares(tiles, SPLITS, LEAST)
    if split >= live:
        return

    past = length - queries
    root = tl.where(drafts > 0, queries - 1 - drafts, queries)  # local index of the root; none: all rows are causal
    m = (tl.program_id(0) % m_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    local = m // GROUP
    head = kv_head * GROUP + m % GROUP
    token = begin.to(tl.int64) + local
    real = (local < queries) & (token < tokens)
    d = tl.arange(0, HEAD_PAD)
    in_head = d < HEAD
    q = tl.load(
        query + token[:, None] * query_token + head[:, None] * query_head + d[None, :],
        mask=real[:, None] & in_head[None, :],
        other=0.0,
    )

    # Every query of this block sees positions below ``plain``, none sees ``end`` or beyond.
    plain = length
    end = length
    if CAUSAL:
        plain = tl.maximum(past + tl.minimum(first, root) + 1, 0)
        end = tl.minimum(length, past + first + (BLOCK_M - 1) // GROUP + 2)
    from_tile = split * each
    to_tile = tl.minimum(tl.minimum(from_tile + each, tiles), tl.cdiv(tl.maximum(end, 0), BLOCK_N))
    turn = tl.minimum(tl.maximum(plain // BLOCK_N, from_tile), to_tile)

    acc = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    n = tl.arange(0, BLOCK_N)
    pages = block_table + row.to(tl.int64) * table_row
    base = cache + kv_head.to(tl.int64) * cache_head

    for tile in tl.range(from_tile, turn):
        at = tile * BLOCK_N + n
        page = tl.load(pages + at // PAGE).to(tl.int64)
        place = base + page * cache_block + (at % PAGE) * cache_slot
        key_tile = tl.load(place[:, None] + d[None, :], mask=in_head[None, :], other=0.0)
        value_tile = tl.load(place[:, None] + HEAD + d[None, :], mask=in_head[None, :], other=0.0)
        found = scores(q, key_tile, scale, PRECISION)
        acc, top, total = absorb(acc, top, total, found, value_tile, False, PRECISION)

    for tile in tl.range(turn, to_tile):
        at = tile * BLOCK_N + n
        there = at < end
        page = tl.load(pages + at // PAGE, mask=there, other=0).to(tl.int64)
        place = base + page * cache_block + (at % PAGE) * cache_slot
        shown = there[:, None] & in_head[None, :]
        key_tile = tl.load(place[:, None] + d[None, :], mask=shown, other=0.0)
        value_tile = tl.load(place[:, None] + HEAD + d[None, :], mask=shown, other=0.0)
        found = scores(q, key_tile, scale, PRECISION)
        seen = there[None, :] & real[:, None]
        if CAUSAL:
            seen = seen & ((at - past)[None, :] <= local[:, None])
            if HAS_STATE:
                below = local - root
                above = at - past - root
                inside = ((below >= 0) & (below < WIDTH))[:, None] & (above >= 0)[None, :] & seen
                where_word = (slot.to(tl.int64) * WIDTH + below[:, None]) * WORDS + (above >> 5)[None, :]
                word = tl.load(mask + where_word, mask=inside, other=-1)
                seen = seen & (((word >> (above & 31)[None, :]) & 1) != 0)
        found = tl.where(seen, found, float("-inf"))
        acc, top, total = absorb(acc, top, total, found, value_tile, True, PRECISION)

    saw = total > 0.0
    acc = acc / tl.where(saw, total, 1.0)[:, None]
    place_out = token[:, None] * out_token + head[:, None] * out_head + d[None, :]
    shown_out = real[:, None] & in_head[None, :]
    if SPLITS == 1:
        tl.store(out + place_out, acc.to(out.dtype.element_ty), mask=shown_out)
    else:
        if live == 1:
            tl.store(out + place_out, acc.to(out.dtype.element_ty), mask=shown_out)
        else:
            entry = (token * (kv_heads * GROUP) + head) * SPLITS + split
            tl.store(partial + entry[:, None] * HEAD + d[None, :], acc, mask=shown_out)
            tl.store(
                partial_lse + entry,
                tl.where(saw, top + tl.math.log2(tl.where(saw, total, 1.0)), float("-inf")),
                mask=real,
            )


@triton.jit(do_not_specialize=["tokens", "slots"])
def merge(
    query_start,
    seq_lens,
    row_slot,
    row_drafts,
    out,
    partial,
    partial_lse,
    tokens,
    slots,
    out_token,
    out_head,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    LEAST: tl.constexpr,
    HAS_STATE: tl.constexpr,
    ONLY_TREES: tl.constexpr,
):
    """Joins the splits of one token and key-value head by their log-sum-exp. Grid: (kv heads, max_query, rows)."""
    kv_head = tl.program_id(0)
    local = tl.program_id(1)
    row = tl.program_id(2)
    begin = tl.load(query_start + row)
    queries = tl.load(query_start + row + 1) - begin
    length = tl.load(seq_lens + row)
    _slot, drafts = _row_tree(row_slot, row_drafts, row, slots, HAS_STATE)
    if ONLY_TREES and drafts <= 0:
        return
    if (queries <= local) | (length <= 0) | (begin + local >= tokens):
        return
    _each, live = shares(tl.cdiv(length, BLOCK_N), SPLITS, LEAST)
    if live <= 1:
        return

    g = tl.arange(0, GROUP_PAD)
    d = tl.arange(0, HEAD_PAD)
    in_group = g < GROUP
    shown = in_group[:, None] & (d < HEAD)[None, :]
    head = kv_head * GROUP + g
    token = begin.to(tl.int64) + local
    entry = (token * (tl.num_programs(0) * GROUP) + head) * SPLITS
    place_out = token * out_token + head[:, None] * out_head + d[None, :]
    join(out, place_out, partial, partial_lse, entry, live, in_group, shown, d, GROUP_PAD, HEAD, HEAD_PAD, SPLITS_PAD)
