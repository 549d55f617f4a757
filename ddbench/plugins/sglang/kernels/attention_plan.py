"""How `attention.attend` is cut for a batch: a rule of the sizes alone, so that a captured graph is launched alike.

The rule, for stacked queries of ``width * (heads // kv_heads)`` rows a key-value head:

- Up to `MEASURED_ROWS` rows, in float32, and for heads above 128: `tiles.tile_of`, slots read in their own step. So it
  was measured at verify width 16 (docs/sglang.md).
- More rows: tiles of as many rows as leave each thread `ACCUMULATOR` registers of sums, 64 rows for a head of 128. With
  128 rows the kernel, as compiled for sm_90 and sm_120, has no registers left and spills 0.7 to 1.3 KB a thread. Slots
  are carried ahead (`attention.attend`), and four stages are taken where two programs still fit into a multiprocessor.
- Splits of the sequence fill the multiprocessors once, two programs each, where a batch alone does not; a sequence too
  short for `LEAST_POSITIONS` a split uses fewer, which the device decides, since the host does not know its length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddbench.plugins.kernels.tiles import (
    LEAST_POSITIONS,
    Tile,
    power_of_2,
    splits_of,
    tile_of,
    window_entries,
    window_programs,
)

MEASURED_ROWS = 64
ACCUMULATOR = 64  # float32 registers of a thread for the sums of its tile
DEEP = 4  # stages: two steps in flight while a third is computed
RESERVED = 1024  # bytes of shared memory that a program takes beside its own


@dataclass(frozen=True)
class Plan:
    """One launch. ``least``: positions of a split at least; ``ahead``: slots are carried from step to step."""

    tile: Tile
    splits: int
    ahead: bool
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
    tile, ahead = shape_of(width, heads, kv_heads, head_dim, element, shared)
    splits = splits_of(window_programs(batch, width, heads, kv_heads, tile), multiprocessors)
    return Plan(tile, splits, ahead)


def shape_of(width: int, heads: int, kv_heads: int, head_dim: int, element: int, shared: int) -> tuple[Tile, bool]:
    """Tile, and whether slots are carried ahead: the part of the rule that every batch of a server has in common."""
    rows, head_pad = width * (heads // kv_heads), power_of_2(head_dim)
    tile = tile_of(rows, head_dim, element, shared)
    if rows <= MEASURED_ROWS or element != 2 or head_pad > 128:
        return tile, False
    tile = replace(tile, m=min(tile.m, ACCUMULATOR * 32 * tile.warps // head_pad))
    deep = replace(tile, stages=DEEP)
    if 2 * (deep.bytes(head_pad, element) + RESERVED) <= shared + RESERVED:
        tile = deep
    return tile, True


def entries_of(
    rows: int, width: int, heads: int, kv_heads: int, head_dim: int, element: int, shared: int, multiprocessors: int
) -> int:
    """Entries of a workspace that holds the splits of every batch of up to ``rows`` windows."""
    tile, _ = shape_of(width, heads, kv_heads, head_dim, element, shared)
    return window_entries(rows, width, heads, kv_heads, tile, multiprocessors)
