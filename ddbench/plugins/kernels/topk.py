# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""The k best of a long row, exactly and in two reads: log-probabilities and ids, lower id first among equals.

The k best entries lie in the k best *groups* of consecutive ids, ordered by their best entry (an entry outside of them
is beaten by one of each), and among groups with equal best entries the one of lower ids comes first. So `scan` reads
the row once, for the sum of exponentials and each group's best; `choose` picks k groups, then k entries of these
groups, and ranks them. Both picks find the k-th largest key bit by bit, as a radix select does, and take ties in order.
"""

import triton
import triton.language as tl

LEAST = tl.constexpr(-0x80000000)  # key of what is not there


@triton.jit
def _key(x, BITS: tl.constexpr):
    """Integers that sort as the numbers do; 16 bits are enough for bfloat16."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    bits = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return bits >> (32 - BITS)


@triton.jit
def _kth(keys, k, BITS: tl.constexpr):
    """The k-th largest of ``keys``; those that are not there must be LEAST, at least k are."""
    one = tl.full([], 1, tl.int32)
    sign = (one << (BITS - 1)) * (0 - 1)
    bound = one * 0  # with the sign bit flipped, so that it grows bit by bit
    for i in tl.range(0, BITS):
        bit = one << (BITS - 1 - i)
        trial = (bound | bit) + sign  # wraps
        enough = tl.sum((keys >= trial).to(tl.int32), 0) >= k
        bound = tl.where(enough, bound | bit, bound)
    return bound + sign


@triton.jit
def _chosen(keys, k, BITS: tl.constexpr):
    """The k largest keys, of equal ones the first: whether each is chosen, and its place among the chosen ones."""
    bound = _kth(keys, k, BITS)
    larger = keys > bound
    equal = keys == bound
    # Two counts in one scan: how many larger ones and how many equal ones stand before.
    pair = larger.to(tl.int64) + (equal.to(tl.int64) << 32)
    before = tl.cumsum(pair, 0) - pair
    room = k - tl.sum(larger.to(tl.int32), 0)
    larger_before = (before & 0xFFFFFFFF).to(tl.int32)
    equal_before = (before >> 32).to(tl.int32)
    taken = larger | (equal & (equal_before < room))
    return taken, larger_before + tl.minimum(equal_before, room)


@triton.jit
def scan(
    logits,
    group_keys,
    chunk_max,
    chunk_sum,
    logits_row,
    vocabulary,
    groups,
    chunks,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    BITS: tl.constexpr,
):
    """Grid: (rows, chunks of BLOCK entries)."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    each: tl.constexpr = BLOCK // GROUP
    group = chunk * each + tl.arange(0, each)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + row * logits_row + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32)
    best = tl.max(x, 1)
    top = tl.max(best, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.sum(tl.exp(x - base), 1), 0)
    tl.store(group_keys + row * groups + group, _key(best, BITS), mask=group < groups)
    tl.store(chunk_max + row * chunks + chunk, top)
    tl.store(chunk_sum + row * chunks + chunk, total)


@triton.jit
def choose(
    logits,
    group_keys,
    chunk_max,
    chunk_sum,
    scratch_group,
    scratch_value,
    scratch_id,
    out_value,
    out_id,
    out_lse,
    logits_row,
    vocabulary,
    groups,
    chunks,
    K: tl.constexpr,
    K_PAD: tl.constexpr,
    PICKED: tl.constexpr,
    PICKED_PAD: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS_PAD: tl.constexpr,
    CHUNKS_PAD: tl.constexpr,
    BITS: tl.constexpr,
    RAW: tl.constexpr,
):
    """Grid: (rows,). PICKED groups are read again, min(K, groups). RAW gives the entries and their row's log-sum-exp
    in place of log-probabilities.
    """
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CHUNKS_PAD)
    maxima = tl.load(chunk_max + row * chunks + c, mask=c < chunks, other=float("-inf"))
    top = tl.max(maxima, 0)
    base = tl.where(top == float("-inf"), 0.0, top)
    sums = tl.load(chunk_sum + row * chunks + c, mask=c < chunks, other=0.0)
    lse = base + tl.log(tl.sum(tl.where(maxima > float("-inf"), sums * tl.exp(maxima - base), 0.0), 0))

    g = tl.arange(0, GROUPS_PAD)
    keys = tl.load(group_keys + row * groups + g, mask=g < groups, other=LEAST)
    taken, place = _chosen(keys, PICKED, BITS)
    tl.store(scratch_group + row * PICKED_PAD + place, g, mask=taken)
    tl.debug_barrier()

    e = tl.arange(0, PICKED_PAD * GROUP)
    which = tl.load(scratch_group + row * PICKED_PAD + e // GROUP, mask=e < PICKED * GROUP, other=0)
    at = which * GROUP + e % GROUP
    there = (e < PICKED * GROUP) & (at < vocabulary)
    x = tl.load(logits + row * logits_row + at, mask=there, other=float("-inf")).to(tl.float32)
    taken, place = _chosen(tl.where(there, _key(x, BITS), LEAST), K, BITS)
    tl.store(scratch_value + row * K_PAD + place, x, mask=taken)
    tl.store(scratch_id + row * K_PAD + place, at, mask=taken)
    tl.debug_barrier()

    # Entries stand in the order of ids: a place among the best is how many are larger, or equal and before.
    i = tl.arange(0, K_PAD)
    inside = i < K
    mine = tl.load(scratch_value + row * K_PAD + i, mask=inside, other=float("-inf"))
    own_id = tl.load(scratch_id + row * K_PAD + i, mask=inside, other=0)
    mine_key = tl.where(inside, _key(mine, 32), LEAST)
    others_key = tl.expand_dims(mine_key, 1)
    beats = (others_key > mine_key[None, :]) | ((others_key == mine_key[None, :]) & (i[:, None] < i[None, :]))
    rank = tl.sum(beats.to(tl.int32), 0)
    if RAW:
        tl.store(out_lse + row, lse)
        tl.store(out_value + row * K + rank, mine, mask=inside)
    else:
        tl.store(out_value + row * K + rank, mine - lse, mask=inside)
    tl.store(out_id + row * K + rank, own_id, mask=inside)
