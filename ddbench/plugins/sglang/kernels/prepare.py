# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""The drafter's block and the verify window's cache slots. One program a row."""

import triton
import triton.language as tl


@triton.jit
def fill_block(
    bonus,
    seq_lens,
    req_pool_indices,
    req_to_token,
    mask_token,
    block_ids,
    positions,
    draft_slots,
    slots,
    table_row,
    table_width,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LANES)
    root = tl.load(bonus + row).to(tl.int64)
    at = tl.load(seq_lens + row).to(tl.int64) + i
    request = tl.load(req_pool_indices + row).to(tl.int64)
    inside = (i < tl.maximum(BLOCK, WIDTH)) & (at < table_width)
    slot = tl.load(req_to_token + request * table_row + at, mask=inside, other=0).to(tl.int64)
    drafted = i < BLOCK
    tl.store(block_ids + row * BLOCK + i, tl.where(i == 0, root, mask_token), mask=drafted)
    tl.store(positions + row * BLOCK + i, at, mask=drafted)
    tl.store(draft_slots + row * BLOCK + i, slot, mask=drafted)
    tl.store(slots + row * WIDTH + i, slot, mask=i < WIDTH)
