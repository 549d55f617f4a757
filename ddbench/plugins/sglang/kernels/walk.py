# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""The walk down each row's tree along the target's choices. One warp a row, everything in registers."""

import triton
import triton.language as tl


@triton.jit
def follow(
    tokens,
    parents,
    depths,
    bits,
    choices,
    seq_lens,
    forced,
    path,
    commit_lens,
    bonus,
    out_tokens,
    new_seq_lens,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    FORCED: tl.constexpr,
):
    """Grid: (rows,). LANES covers the window and the block."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, LANES)
    window = row * WIDTH + lanes
    inside = lanes < WIDTH
    chosen = tl.load(choices + window, mask=inside, other=-1).to(tl.int32)
    token = tl.load(tokens + window, mask=inside, other=-1).to(tl.int32)
    parent = tl.load(parents + window, mask=inside, other=-1)

    want = 0
    wanted = lanes < 0
    if FORCED:
        want = tl.load(forced + row)
        depth = tl.load(depths + window, mask=inside, other=0)
        deep = tl.minimum(want - 1, tl.max(depth, 0))
        last = tl.min(tl.where(inside & (depth == deep), lanes, WIDTH - 1), 0)
        word = tl.load(bits + (row * WIDTH + last) * WORDS + lanes // 32, mask=inside, other=0)
        wanted = ((word >> (lanes % 32)) & 1) != 0

    at = 0
    step = 0
    said = tl.sum(tl.where(lanes == 0, chosen, 0), 0)
    way = tl.where(lanes == 0, 0, -1)
    line = tl.zeros([LANES], tl.int32)
    going = said == said
    while going:
        # Of equal siblings the first counts.
        fits = token == said
        if FORCED:
            fits = tl.where(want > 0, wanted, fits)
        following = tl.min(tl.where((parent == at) & fits, lanes, LANES), 0)
        going = following < LANES
        at = tl.where(going, following, at)
        here = lanes == at
        taken = tl.sum(tl.where(here, token, 0), 0)
        line = tl.where((lanes == step) & going, taken, line)
        step += going.to(tl.int32)
        said = tl.sum(tl.where(here, chosen, 0), 0)
        way = tl.where(lanes == step, at, way)
    line = tl.where(lanes == step, said, line)

    block = lanes < BLOCK
    tl.store(path + row * BLOCK + lanes, way, mask=block)
    tl.store(out_tokens + row * BLOCK + lanes, line.to(tl.int64), mask=block)
    tl.store(bonus + row, said.to(tl.int64))
    tl.store(commit_lens + row, step + 1)
    tl.store(new_seq_lens + row, tl.load(seq_lens + row).to(tl.int64) + step + 1)
