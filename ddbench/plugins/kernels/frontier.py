# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""The exact best-first build of one tree by one warp, for the kernels that write it out in their engine's form.

The frontier lies in registers, one entry a lane: the score as an integer that sorts as it (smallest best), the node
packed into an integer, and its rank tuple in four words of four 7-bit places (rank + 1, so that a prefix sorts before
its extensions). A pop is three integer reductions; only where scores are equal, the words decide. The popped lane takes
the next sibling, a new lane the first child: so a tree of N nodes needs at most N + 1 lanes.

An entry, packed: rank in bits 0-6, depth 7-11, parent (local index) 12-19, on the spine 20, lane 21-27.
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
def grow(
    lp,
    lp_level,
    lp_rank,
    nodes,
    levels,
    width,
    worst,
    spine_first,
    LEVELS: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    LEVELS_PAD: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
):
    """The nodes of the best tree of the table at ``lp``, ``[LEVELS, WIDTH]`` with the two strides.

    ``nodes``, ``levels`` (at most LEVELS) and ``width`` (at most WIDTH) limit the tree, ``worst`` is the key of the
    lowest score that is still a node, ``spine_first`` 1 puts the spine first, else 0; constants or values of the
    device. Returns int32 ``[LANES]`` by local index, ``parent << 12 | depth << 7 | rank``, -1 for what is no node.
    """
    lanes = tl.arange(0, LANES)
    # One read of the whole table brings it into the first-level cache, where the pops find it.
    level = tl.arange(0, LEVELS_PAD)[:, None]
    rank_of = tl.arange(0, WIDTH_PAD)[None, :]
    table = tl.load(
        lp + level * lp_level + rank_of * lp_rank, mask=(level < LEVELS) & (rank_of < WIDTH), other=float("-inf")
    )
    some = tl.max(tl.max(_clean(table.to(tl.float32)), 1), 0) > float("-inf")

    node = tl.full([LANES], -1, tl.int32)  # by local index: the packed node
    count = tl.full([], 0, tl.int32)
    if spine_first == 1:
        total = tl.full([], 0.0, tl.float32)
        for d in tl.static_range(LEVELS):
            total += _clean(tl.load(lp + d * lp_level).to(tl.float32))
            real = (total > float("-inf")) & (d < levels)
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
    going = some & (count < nodes)
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

        good = best <= worst
        placed = (spine == 1) & (spine_first == 1)  # stands already
        local = tl.where(placed, depth, count + 1)
        fresh = good & (placed == 0)
        node = tl.where(lanes == tl.where(fresh, local, -1), (parent << 12) | (depth << 7) | rank, node)
        count += fresh.to(tl.int32)

        # The next sibling takes the popped lane ...
        sibling = tl.load(lp + (depth - 1) * lp_level + tl.minimum(rank + 1, WIDTH - 1) * lp_rank)
        child = tl.load(lp + tl.minimum(depth, LEVELS - 1) * lp_level)
        sibling_score = over.to(tl.float32, bitcast=True) + _clean(sibling.to(tl.float32))
        child_score = best.to(tl.float32, bitcast=True) + _clean(child.to(tl.float32))
        key = tl.where(own, tl.where(rank + 1 < width, _key(sibling_score), NOTHING), key)
        info = tl.where(own, (lane << 21) | (parent << 12) | (depth << 7) | (rank + 1), info)
        w0 = tl.where(own, p0 + _place(depth - 1, 0), w0)
        w1 = tl.where(own, p1 + _place(depth - 1, 1), w1)
        w2 = tl.where(own, p2 + _place(depth - 1, 2), w2)
        w3 = tl.where(own, p3 + _place(depth - 1, 3), w3)
        # ... and the first child a new one.
        new = lanes == used
        key = tl.where(new, tl.where(depth < levels, _key(child_score), NOTHING), key)
        above = tl.where(new, best, above)
        info = tl.where(new, (used << 21) | (spine << 20) | (local << 12) | ((depth + 1) << 7), info)
        w0 = tl.where(new, p0 + _place(depth, 0), w0)
        w1 = tl.where(new, p1 + _place(depth, 1), w1)
        w2 = tl.where(new, p2 + _place(depth, 2), w2)
        w3 = tl.where(new, p3 + _place(depth, 3), w3)
        used += 1
        going = good & (count < nodes)
    return node


@triton.jit
def ancestor_words(up, LEVELS: tl.constexpr, WORDS: tl.constexpr):
    """Sets of each lane and its ancestors, four words of 32 bits, those from WORDS on empty.

    ``up`` int32 ``[LANES]`` has each lane's parent; the root and padding are their own. No path is longer than LEVELS.
    """
    at = tl.arange(0, up.shape[0])
    b0 = tl.zeros_like(up)
    b1 = tl.zeros_like(up)
    b2 = tl.zeros_like(up)
    b3 = tl.zeros_like(up)
    for _ in tl.static_range(LEVELS + 1):
        bit = 1 << (at % 32)
        word = at // 32
        b0 |= tl.where(word == 0, bit, 0)
        if WORDS > 1:
            b1 |= tl.where(word == 1, bit, 0)
        if WORDS > 2:
            b2 |= tl.where(word == 2, bit, 0)
        if WORDS > 3:
            b3 |= tl.where(word == 3, bit, 0)
        at = tl.gather(up, at, 0)
    return b0, b1, b2, b3


@triton.jit
def store_words(b0, b1, b2, b3, place, inside, WORDS: tl.constexpr):
    """The words of `ancestor_words` to ``place``, a pointer a lane to WORDS of them."""
    tl.store(place, b0, mask=inside)
    if WORDS > 1:
        tl.store(place + 1, b1, mask=inside)
    if WORDS > 2:
        tl.store(place + 2, b2, mask=inside)
    if WORDS > 3:
        tl.store(place + 3, b3, mask=inside)
