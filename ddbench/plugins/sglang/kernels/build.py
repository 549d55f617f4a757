# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""The exact best-first build of one tree by one warp, under run-time caps. `frontier.grow` has the algorithm."""

import triton
import triton.language as tl

from ddbench.plugins.kernels.frontier import ancestor_words, grow, store_words


@triton.jit
def build(
    log_probs,
    ids,
    roots,
    caps,
    tokens,
    parents,
    depths,
    bits,
    lp_row,
    lp_level,
    lp_rank,
    id_row,
    id_level,
    id_rank,
    root_row,
    LEVELS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    LANES: tl.constexpr,
    LEVELS_PAD: tl.constexpr,
    CANDIDATES_PAD: tl.constexpr,
):
    """Grid: (rows,). WIDTH is the verify width; ``log_probs`` and ``ids`` are ``[rows, LEVELS, CANDIDATES]``."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, LANES)
    node = grow(
        log_probs + row * lp_row,
        lp_level,
        lp_rank,
        tl.minimum(tl.load(caps + 2), WIDTH - 1),
        tl.minimum(tl.load(caps + 1), LEVELS),
        tl.minimum(tl.load(caps), CANDIDATES),
        tl.load(caps + 4),
        tl.load(caps + 3),
        LEVELS,
        CANDIDATES,
        LANES,
        LEVELS_PAD,
        CANDIDATES_PAD,
    )
    real = node >= 0
    up = tl.where(real, node >> 12, lanes)  # the root and padding are their own parents
    depth = tl.where(real, (node >> 7) & 31, 0)
    rank = tl.where(real, node & 127, 0)
    token = tl.load(ids + row * id_row + (depth - 1) * id_level + rank * id_rank, mask=real, other=0).to(tl.int64)
    root = tl.load(roots + row * root_row).to(tl.int64)
    inside = lanes < WIDTH
    place = row * WIDTH + lanes
    tl.store(tokens + place, tl.where(lanes == 0, root, token), mask=inside)
    tl.store(parents + place, tl.where(real, up, -1), mask=inside)
    tl.store(depths + place, depth, mask=inside)
    b0, b1, b2, b3 = ancestor_words(up, LEVELS, WORDS)
    store_words(b0, b1, b2, b3, bits + place * WORDS, inside, WORDS)
