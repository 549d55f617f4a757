# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""Positions of a verify window: from sequential to root + depth (the walk takes them back). One program a row."""

import triton
import triton.language as tl


@triton.jit
def shift(
    row_slot,
    row_drafts,
    depths,
    tokens,
    query_start,
    positions,
    input_ids,
    NODES: tl.constexpr,
    LANES: tl.constexpr,
    WITH_TOKENS: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(row_slot + row)
    drafts = tl.load(row_drafts + row)
    if (slot < 0) | (drafts <= 0):
        return
    i = tl.arange(0, LANES)
    inside = i < drafts
    first = tl.load(query_start + row + 1) - drafts
    source = slot.to(tl.int64) * NODES + i
    move = tl.load(depths + source, mask=inside, other=0) - (i + 1)
    place = positions + first + i
    tl.store(place, tl.load(place, mask=inside, other=0) + move, mask=inside)
    if WITH_TOKENS:
        tl.store(input_ids + first + i, tl.load(tokens + source, mask=inside, other=0), mask=inside)
