# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""The exact best-first build of one tree by one warp, written into its slot. `frontier.grow` has the algorithm."""

import triton
import triton.language as tl

from ddbench.plugins.kernels.frontier import ancestor_words, grow, store_words


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
    """Grid: (trees,). ``WORST`` is the key of the lowest score that is still a node; ``SPINE`` 1 or 0."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    lanes = tl.arange(0, LANES)
    node = grow(
        log_probs + row * lp_row,
        lp_level,
        lp_rank,
        NODES,
        LEVELS,
        WIDTH,
        WORST,
        SPINE,
        LEVELS,
        WIDTH,
        LANES,
        LEVELS_PAD,
        WIDTH_PAD,
    )
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
    b0, b1, b2, b3 = ancestor_words(up, LEVELS, WORDS)
    store_words(b0, b1, b2, b3, mask + (slot * (NODES + 1) + lanes) * WORDS, lanes <= NODES, WORDS)
