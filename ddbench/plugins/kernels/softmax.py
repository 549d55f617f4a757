# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disallow-untyped-decorators=False
"""An online softmax over tiles of positions, split among programs, and the join of the splits: of both plug-ins.

A sequence's tiles are dealt to at most ``SPLITS`` programs, at least ``LEAST`` tiles to each; `shares` is what the
attention and the join both derive from the number of tiles alone. Paddings are handed in: an engine may have put a
function of its own in the place of Triton's helpers, which a kernel cannot call.
"""

import triton
import triton.language as tl


@triton.jit
def shares(tiles, SPLITS: tl.constexpr, LEAST: tl.constexpr):
    """Tiles that one program takes, and programs that have any."""
    each = tl.maximum(tl.cdiv(tiles, SPLITS), LEAST)
    return each, tl.cdiv(tiles, each)


@triton.jit
def scores(q, key_tile, scale, PRECISION: tl.constexpr):
    return tl.dot(q, tl.trans(key_tile), input_precision=PRECISION) * scale


@triton.jit
def absorb(acc, top, total, found, value_tile, GUARD: tl.constexpr, PRECISION: tl.constexpr):
    """One step of the online softmax in base 2. ``GUARD``: some row may have seen nothing so far."""
    new = tl.maximum(top, tl.max(found, 1))
    base = new
    if GUARD:
        base = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.math.exp2(found - base[:, None])
    keep = tl.math.exp2(top - base)
    total = total * keep + tl.sum(weights, 1)
    acc = acc * keep[:, None]
    acc = tl.dot(weights.to(value_tile.dtype), value_tile, acc, input_precision=PRECISION)
    return acc, new, total


@triton.jit
def join(
    out,
    place_out,
    partial,
    partial_lse,
    entry,
    live,
    in_group,
    shown,
    d,
    GROUP_PAD: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
):
    """Joins the ``live`` splits of the heads of a group, whose parts begin at ``entry``, by their log-sum-exp."""
    s = tl.arange(0, SPLITS_PAD)
    lse = tl.load(
        partial_lse + entry[:, None] + s[None, :], mask=in_group[:, None] & (s < live)[None, :], other=float("-inf")
    )
    top = tl.max(lse, 1)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.math.exp2(lse - top[:, None]), 1)
    acc = tl.zeros([GROUP_PAD, HEAD_PAD], tl.float32)
    for split in range(0, live):
        weight = tl.math.exp2(tl.load(partial_lse + entry + split, mask=in_group, other=float("-inf")) - top)
        acc += weight[:, None] * tl.load(partial + (entry + split)[:, None] * HEAD + d[None, :], mask=shown, other=0.0)
    acc = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out + place_out, acc.to(out.dtype.element_ty), mask=shown)
