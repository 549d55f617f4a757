"""Launching attention of verify windows: tiles that fit the device's shared memory, splits that fill the device.

Torch is loaded for the workspace alone, so that its size can be computed without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_SPLITS = 32
LEAST_POSITIONS = 128  # of a split: below that, joining costs more than it saves
RESERVED = 1024  # bytes of shared memory that a program takes beside its own
BLOCKS_PER_PROCESSOR = 2  # programs that one multiprocessor runs at once


@dataclass(frozen=True)
class Tile:
    """``m`` query rows and ``n`` positions a step; warps and pipeline stages of a program."""

    m: int
    n: int
    warps: int
    stages: int

    def bytes(self, head_pad: int, element: int) -> int:
        """Shared memory of queries, of the stages' keys and values, and of the weights of one step."""
        return element * (self.m * head_pad + 2 * self.n * head_pad * self.stages + self.m * self.n)


def tile_of(query_rows: int, head_size: int, element: int, limit: int) -> Tile:
    """The tile for ``query_rows`` stacked queries a key-value head, elements of ``element`` bytes.

    Raises ValueError where even the smallest does not fit into ``limit`` bytes.
    """
    head_pad = power_of_2(head_size)
    m = min(max(power_of_2(query_rows), 16), 32 if element == 4 else 128)
    if head_pad > 128:
        m = min(m, 64)
    # Measured on an H200 (docs/evidence/README.md): steps of 32 positions beat 64 by a quarter at a context of 256 and
    # are even with them at 2048. Stages overlap the next steps' loads with this step's products.
    for n, stages in ((32, 3), (32, 2), (32, 1), (16, 1)):
        tile = Tile(m, n, 4, stages)
        if tile.bytes(head_pad, element) <= limit - RESERVED:
            return tile
    raise ValueError(f"head_size={head_size}: no attention tile fits into {limit} bytes of shared memory")


@dataclass(frozen=True)
class AttentionWorkspace:
    """Partial results of splits, float32: ``entries`` of a token's one split, over all heads."""

    partial: Tensor  # [entries, heads, head_size], in memory [token, head, split, head_size]
    lse: Tensor  # [entries, heads]
    entries: int

    @classmethod
    def of(
        cls, max_tokens: int, heads: int, head_size: int, splits: int, device: torch.device | str
    ) -> AttentionWorkspace:
        """Room for ``splits`` splits of ``max_tokens`` tokens; fewer tokens may have more splits, more tokens fewer."""
        import torch

        entries = max(1, max_tokens * splits)
        return cls(
            partial=torch.empty(entries, heads, head_size, dtype=torch.float32, device=device),
            lse=torch.empty(entries, heads, dtype=torch.float32, device=device),
            entries=entries,
        )

    def splits_for(self, tokens: int) -> int:
        return max(1, self.entries // max(tokens, 1))


def power_of_2(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (number - 1).bit_length()


def splits_of(programs: int, multiprocessors: int, each: int = BLOCKS_PER_PROCESSOR) -> int:
    """Splits that make of ``programs`` programs at most ``each`` a multiprocessor; 1 where there are more already."""
    return min(MOST_SPLITS, max(1, each * multiprocessors // max(programs, 1)))
