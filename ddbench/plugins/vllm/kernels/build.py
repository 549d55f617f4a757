# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""The exact best-first build of one tree by one warp.

The frontier lies in registers, one entry a lane: the score as an integer that sorts as it (smallest best), the node
packed into an integer, and its rank tuple in four words of four 7-bit places (rank + 1, so that a prefix sorts before
its extensions). A pop is three integer reductions; only where scores are equal, the words decide. The popped lane takes
the next sibling, a new lane the first child: so a tree of N nodes needs at most N + 1 lanes.

Packed: rank in bits 0-6, depth 7-11, parent (local index) 12-19, on the spine 20, lane 21-27.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(0x7FFFFFFF)  # key of an empty lane
ZERO = tl.constexpr(-0x80000000)  # key of a score of zero, the best there is


@triton.jit
def _key(score):
    """Scores are at most 0, and the bits of negative numbers, as integers, grow as the numbers fall."""
    return tl.where(score < 0.0, score.to(tl.int32, bitcast=True), ZERO)


@triton.jit
def _clean(x):
    """Above 0 counts as 0, NaN as -inf."""
    return tl.where(x < 0.0, x, tl.where(x >= 0.0, 0.0, float("-inf")))


@triton.jit
def _place(level, word: tl.constexpr):
    """The unit of a level's place in a word: what one rank adds."""
    return tl.where(level // 4 == word, 1 << (21 - 7 * (level % 4)), 0)


@triton.jit
def _pick(values, own):
    return tl.sum(tl.where(own, values, 0), 0)


@triton.jit
def _narrow(tied, word):
    """Of tied lanes, those of the smallest word."""
    return tied & (word == tl.min(tl.where(tied, word, NOTHING), 0))


@triton.jit
def build(
    log_probs,
    ids,
    slots,
    tokens,
    parents,
    depths,
    mask,
    made,
    lp_row,
    lp_level,
    lp_rank,
    id_row,
    id_level,
    id_rank,
    NODES: tl.constexpr,
    LEVELS: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    WORST: tl.constexpr,
    SPINE: tl.constexpr,
    LANES: tl.constexpr,
    LEVELS_PAD: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
):
    """Grid: (trees,). ``WORST`` is the key of the lowest score that is still a node."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    lanes = tl.arange(0, LANES)
    lp = log_probs + row * lp_row

    # One read of the whole table brings it into the first-level cache, where the pops find it.
    level = tl.arange(0, LEVELS_PAD)[:, None]
    rank_of = tl.arange(0, WIDTH_PAD)[None, :]
    table = tl.load(
        lp + level * lp_level + rank_of * lp_rank, mask=(level < LEVELS) & (rank_of < WIDTH), other=float("-inf")
    )
    some = tl.max(tl.max(_clean(table.to(tl.float32)), 1), 0) > float("-inf")

    node = tl.full([LANES], -1, tl.int32)  # by local index: the packed node
    count = tl.full([], 0, tl.int32)
    if SPINE:
        total = tl.full([], 0.0, tl.float32)
        for d in tl.static_range(LEVELS):
            total += _clean(tl.load(lp + d * lp_level).to(tl.float32))
            real = total > float("-inf")
            node = tl.where(lanes == tl.where(real, d + 1, -1), (d << 12) | ((d + 1) << 7), node)
            count += real.to(tl.int32)

    start = _key(_clean(tl.load(lp).to(tl.float32)))
    key = tl.where(lanes == 0, start, NOTHING)
    above = tl.zeros([LANES], tl.int32)  # bits of the parent's score
    info = (lanes << 21) | (1 << 7) | (1 << 20)
    w0 = tl.zeros([LANES], tl.int32) + (1 << 21)
    w1 = tl.zeros([LANES], tl.int32)
    w2 = tl.zeros([LANES], tl.int32)
    w3 = tl.zeros([LANES], tl.int32)
    used = 1
    going = some & (count < NODES)
    while going:
        best = tl.min(key, 0)
        tied = key == best
        low = tl.min(tl.where(tied, info, NOTHING), 0)
        high = tl.max(tl.where(tied, info, -1), 0)
        if low != high:
            tied = _narrow(tied, w0)
            if LEVELS > 4:
                tied = _narrow(tied, w1)
            if LEVELS > 8:
                tied = _narrow(tied, w2)
            if LEVELS > 12:
                tied = _narrow(tied, w3)
            low = tl.min(tl.where(tied, info, NOTHING), 0)
        lane = low >> 21
        spine = (low >> 20) & 1
        parent = (low >> 12) & 255
        depth = (low >> 7) & 31
        rank = low & 127
        own = lanes == lane
        over = _pick(above, own)
        p0 = _pick(w0, own)
        p1 = _pick(w1, own)
        p2 = _pick(w2, own)
        p3 = _pick(w3, own)

        good = best <= WORST
        local = count + 1
        fresh = good
        if SPINE:
            local = tl.where(spine == 1, depth, local)
            fresh = fresh & (spine == 0)
        node = tl.where(lanes == tl.where(fresh, local, -1), (parent << 12) | (depth << 7) | rank, node)
        count += fresh.to(tl.int32)

        # The next sibling takes the popped lane ...
        sibling = tl.load(lp + (depth - 1) * lp_level + tl.minimum(rank + 1, WIDTH - 1) * lp_rank)
        child = tl.load(lp + tl.minimum(depth, LEVELS - 1) * lp_level)
        sibling_score = over.to(tl.float32, bitcast=True) + _clean(sibling.to(tl.float32))
        child_score = best.to(tl.float32, bitcast=True) + _clean(child.to(tl.float32))
        key = tl.where(own, tl.where(rank + 1 < WIDTH, _key(sibling_score), NOTHING), key)
        info = tl.where(own, (lane << 21) | (parent << 12) | (depth << 7) | (rank + 1), info)
        w0 = tl.where(own, p0 + _place(depth - 1, 0), w0)
        w1 = tl.where(own, p1 + _place(depth - 1, 1), w1)
        w2 = tl.where(own, p2 + _place(depth - 1, 2), w2)
        w3 = tl.where(own, p3 + _place(depth - 1, 3), w3)
        # ... and the first child a new one.
        new = lanes == used
        key = tl.where(new, tl.where(depth < LEVELS, _key(child_score), NOTHING), key)
        above = tl.where(new, best, above)
        info = tl.where(new, (used << 21) | (spine << 20) | (local << 12) | ((depth + 1) << 7), info)
        w0 = tl.where(new, p0 + _place(depth, 0), w0)
        w1 = tl.where(new, p1 + _place(depth, 1), w1)
        w2 = tl.where(new, p2 + _place(depth, 2), w2)
        w3 = tl.where(new, p3 + _place(depth, 3), w3)
        used += 1
        going = good & (count < NODES)

    real = node >= 0
    up = tl.where(real, node >> 12, lanes)  # the root and padding are their own parents
    depth = tl.where(real, (node >> 7) & 31, 0)
    rank = tl.where(real, node & 127, 0)
    token = tl.load(ids + row * id_row + (depth - 1) * id_level + rank * id_rank, mask=real, other=0)
    inside = (lanes >= 1) & (lanes <= NODES)
    place = slot * NODES + lanes - 1
    tl.store(tokens + place, token.to(tl.int32), mask=inside)
    tl.store(made + row * NODES + lanes - 1, token.to(tl.int32), mask=inside)
    tl.store(parents + place, tl.where(real, up, -1), mask=inside)
    tl.store(depths + place, depth, mask=inside)
    for word in tl.static_range(WORDS):
        bits = tl.zeros([LANES], tl.int32)
        at = lanes
        for _ in tl.static_range(LEVELS + 1):
            bits |= tl.where(at // 32 == word, 1 << (at % 32), 0)
            at = tl.gather(up, at, 0)
        tl.store(mask + (slot * (NODES + 1) + lanes) * WORDS + word, bits, mask=lanes <= NODES)
