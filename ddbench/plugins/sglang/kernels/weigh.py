# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""What the drafter thinks of each node of a tree that stands: its score, and whether it is on the drafter's own chain.

The build keeps neither, since a round needs neither. A node's rank is where its token stands among the candidates of
its depth, which are all different.
"""

import triton
import triton.language as tl


@triton.jit
def weigh(
    tokens,
    parents,
    depths,
    log_probs,
    ids,
    scores,
    chain,
    lp_row,
    lp_level,
    lp_rank,
    id_row,
    id_level,
    id_rank,
    LEVELS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
):
    """Grid: (rows,), one warp each."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, LANES)
    inside = lanes < WIDTH
    place = row * WIDTH + lanes
    depth = tl.load(depths + place, mask=inside, other=0)
    parent = tl.load(parents + place, mask=inside, other=-1)
    token = tl.load(tokens + place, mask=inside, other=-1).to(tl.int32)
    real = inside & (depth > 0)
    up = tl.where(real, parent, lanes)  # the root and padding are their own parents, and weigh nothing
    level = tl.maximum(depth - 1, 0)
    own = tl.zeros([LANES], tl.float32)
    off = real.to(tl.int32)
    for rank in range(CANDIDATES):
        offered = tl.load(ids + row * id_row + level * id_level + rank * id_rank, mask=real, other=-1)
        score = tl.load(log_probs + row * lp_row + level * lp_level + rank * lp_rank, mask=real, other=0.0)
        hit = real & (offered == token)
        own = tl.where(hit, tl.minimum(score.to(tl.float32), 0.0), own)
        off = tl.where(hit & (rank == 0), 0, off)
    total = own
    crooked = off
    at = up
    for _ in tl.static_range(LEVELS):
        total += tl.gather(own, at, 0)
        crooked += tl.gather(off, at, 0)
        at = tl.gather(up, at, 0)
    tl.store(scores + place, tl.where(real, total, float("-inf")), mask=inside)
    tl.store(chain + place, (real & (crooked == 0)).to(tl.int32), mask=inside)
