"""How many words hold a set of local indices (`bits`). Without torch, so that what only counts need not load it."""

from __future__ import annotations

WORD = 32


def words_of(width: int) -> int:
    """32-bit words that hold one bit for each of ``width`` local indices."""
    return (width + WORD - 1) // WORD
