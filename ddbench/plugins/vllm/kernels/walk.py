# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""The walk through each row's tree along the target's choices. One warp a row, everything in registers.

It gives the positions back too, since it follows the target's pass at once: one launch less in a round.
"""

import triton
import triton.language as tl


@triton.jit
def follow(
    row_slot,
    row_drafts,
    tokens,
    parents,
    depths,
    path,
    query_start,
    positions,
    choices,
    cu_sampled,
    emitted,
    emitted_row,
    emitted_width,
    NODES: tl.constexpr,
    LANES: tl.constexpr,
    RESTORE: tl.constexpr,
):
    """Grid: (rows,). LANES covers the window and the width of ``emitted``."""
    row = tl.program_id(0)
    lanes = tl.arange(0, LANES)
    end = tl.load(cu_sampled + row)
    begin = tl.load(cu_sampled + row - 1, mask=row > 0, other=0)
    slot = tl.load(row_slot + row)
    drafts = tl.load(row_drafts + row)
    count = tl.where(slot >= 0, tl.minimum(tl.minimum(drafts, end - begin - 1), NODES), 0)
    chosen = tl.load(choices + begin + lanes, mask=lanes < end - begin, other=-1).to(tl.int32)
    place = tl.maximum(slot, 0).to(tl.int64) * NODES + lanes - 1
    if RESTORE:
        inside = (lanes >= 1) & (lanes <= tl.where(slot >= 0, drafts, 0))
        moved = lanes - tl.load(depths + place, mask=inside, other=0)
        at_token = positions + tl.load(query_start + row + 1) - drafts + lanes - 1
        tl.store(at_token, tl.load(at_token, mask=inside, other=0) + moved, mask=inside)
    node = (lanes >= 1) & (lanes <= count)
    token = tl.load(tokens + place, mask=node, other=-1)
    parent = tl.load(parents + place, mask=node, other=-1)

    at = 0
    step = 0
    said = tl.sum(tl.where(lanes == 0, chosen, 0), 0)
    way = tl.where(lanes == 0, 0, -1)
    line = tl.where(lanes == 0, said, -1)
    going = count > 0
    while going:
        # Of equal siblings the first counts.
        following = tl.min(tl.where(node & (parent == at) & (token == said), lanes, LANES), 0)
        going = following < LANES
        step += going.to(tl.int32)
        at = tl.where(going, following, at)
        said = tl.sum(tl.where(lanes == at, chosen, 0), 0)
        way = tl.where(lanes == step, at, way)
        line = tl.where(lanes == step, said, line)
    tl.store(path + row.to(tl.int64) * (NODES + 1) + lanes, way, mask=lanes <= NODES)
    tl.store(emitted + row.to(tl.int64) * emitted_row + lanes, line, mask=lanes < emitted_width)
