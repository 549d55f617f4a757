"""How `attention.attend` is cut for a batch: a rule of the sizes alone, so that a captured graph is launched alike.

The rule, for stacked queries of ``width * (heads // kv_heads)`` rows a key-value head:

- Tiles of at most `MOST_ROWS` rows: for a head of 128 that is 64 sums in the registers of each thread, for one of 256
  twice as many. With 128 rows of a head of 128 and four warps the kernel, as compiled for sm_90 and sm_120, has no
  registers left and spills; heads of 256 have not been looked at.
- Splits of the sequence until there is one program a multiprocessor, none where a batch alone has as many. A sequence
  too short for `LEAST_POSITIONS` a split uses fewer, which the device decides: the host does not know its length.

Measured on an H200 (docs/evidence/sglang_attention.json) in bfloat16 with Qwen3-8B's heads: verify widths 16, 32, 64
and 128, batch 1 to 64, contexts of 256 and 1024, once each; splits of 1, 2, 4 and 8, so that width 16 at batch 1 is
judged with 8 and not with its 16. In the geometric mean of the 56 points the rule takes 1.04 of the time of the best
plan of each point, and 1.17 at worst; two programs a multiprocessor 1.05, at worst 1.30. No tile that all points have
does better. Tiles of 128 rows by 64 positions with eight warps, which widths of 32 and up have, take 1.06 in the mean
of these 42 points, the rule there 1.05. They take 0.86 to 0.92 of this rule's time at a context of 1024 and width 64 or
128 (1.07 at width 64, batch 1), but 0.99 to 1.27 at 256, and do not fit into 99 KiB of shared memory. In the mean of
both contexts they are even at width 64 and 3 % faster at 128.

Spot checks (docs/evidence/sglang_attention_spot.json; widths 16 and 64, batch 1, 3 and 8): at a context of 4096 the
best plan tried takes 0.69 to 0.85 of the rule's time at width 64, with 128 rows and up to 8 splits, and 0.82 to 1.00 at
width 16. 16 splits at width 16 and batch 1 are even with 8 at 256, and take 0.80 of their time at 4096. Float32 and
heads of other sizes have not been timed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddbench.plugins.kernels.tiles import LEAST_POSITIONS, Tile, splits_of, tile_of

MOST_ROWS = 64
FILL = 1  # programs a multiprocessor


@dataclass(frozen=True)
class Plan:
    """One launch. ``least``: positions of a split at least."""

    tile: Tile
    splits: int
    least: int = LEAST_POSITIONS

    @property
    def least_tiles(self) -> int:
        return max(1, self.least // self.tile.n)


def plan(
    width: int,
    batch: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    multiprocessors: int,
    *,
    element: int = 2,
    shared: int = 227 * 1024,
) -> Plan:
    """The rule, of ``batch`` windows of ``width`` tokens.

    ``element``: bytes of one; ``shared``: bytes of shared memory that a program may have. Raises ValueError for a head
    that no tile fits.
    """
    tile = shape_of(width, heads, kv_heads, head_dim, element, shared)
    return Plan(tile, splits_of(programs_of(batch, width, heads, kv_heads, tile), multiprocessors, FILL))


def shape_of(width: int, heads: int, kv_heads: int, head_dim: int, element: int, shared: int) -> Tile:
    """The part of the rule that every batch of a server has in common."""
    return tile_of(min(width * (heads // kv_heads), MOST_ROWS), head_dim, element, shared)


def programs_of(batch: int, width: int, heads: int, kv_heads: int, tile: Tile) -> int:
    """Programs of ``batch`` windows of ``width`` tokens, without splits."""
    return batch * kv_heads * -(-width * (heads // kv_heads) // tile.m)


def entries_of(
    rows: int, width: int, heads: int, kv_heads: int, head_dim: int, element: int, shared: int, multiprocessors: int
) -> int:
    """Entries of a workspace that holds the splits of every batch of up to ``rows`` windows."""
    tile = shape_of(width, heads, kv_heads, head_dim, element, shared)
    programs = {batch: programs_of(batch, width, heads, kv_heads, tile) for batch in range(1, rows + 1)}
    splits = {batch: splits_of(count, multiprocessors, FILL) for batch, count in programs.items()}
    return max((batch * width * count for batch, count in splits.items() if count > 1), default=1)
