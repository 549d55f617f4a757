"""The order of rank tuples as the order of integers.

A rank r is written as n ones, a zero and the n low bits of r + 1, with n = floor(log2(r + 1)): "0", "100", "101",
"11000", ... Comparing such codes bit by bit compares the ranks, so a path's codes joined and aligned to the left
compare as the rank tuples do. A node that belongs to the best B has at most B tuples at its own depth with no rank
larger than its own, that is prod(rank + 1) <= B: its code takes at most depth + 2 log2(B) bits, less than an int64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddbench.errors import ConfigError

LAST = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class RankCode:
    """Codes of the ranks 0 to width - 1, for paths of at most ``depth`` ranks in a tree of at most ``nodes`` nodes."""

    words: Tensor  # [width] int64, aligned to the left of `bits` bits
    lengths: Tensor  # [width] int64
    bits: int
    depth: int

    @staticmethod
    def check(nodes: int, depth: int) -> int:
        """Bits of a code. Raises ConfigError where an int64 is too short (depth 15 fits up to a budget of 2 ** 22)."""
        bits = depth + 2 * (nodes.bit_length() - 1)
        if bits + depth.bit_length() > 62:
            raise ConfigError("nodes, depth", (nodes, depth), "depth + 2 log2(nodes) + log2(depth) of at most 61")
        return bits

    @classmethod
    def of(cls, nodes: int, depth: int, width: int, device: torch.device) -> RankCode:
        """Raises ConfigError where `check` does."""
        bits = cls.check(nodes, depth)
        value = torch.arange(1, width + 1, device=device)
        low_bits = torch.searchsorted(torch.full((30,), 2, device=device).cumprod(0), value, right=True)
        lengths = 2 * low_bits + 1
        low = value - (1 << low_bits)
        code = (((1 << low_bits) - 1) << (low_bits + 1)) + low
        return cls(words=code << (bits - lengths).clamp(min=0), lengths=lengths, bits=bits, depth=depth)


def sort_keys(parents: Tensor, ranks: Tensor, depths: Tensor, valid: Tensor, code: RankCode) -> tuple[Tensor, Tensor]:
    """Two int64 keys for each node ``[batch, n]``: ascending, they list every tree in preorder and in postorder.

    ``parents`` are indices into the n nodes; node 0 is the root and its own parent. In both orders siblings go by rank;
    a node stands before its descendants in preorder and after them in postorder; what is not ``valid`` comes last.
    """
    words = torch.where(depths > 0, code.words[ranks], 0)
    lengths = torch.where(depths > 0, code.lengths[ranks], 0)
    # Pointer doubling: after round r a node has the codes of its last 2 ** r steps, and points above them.
    above = parents
    for _ in range((code.depth - 1).bit_length()):
        prefix = lengths.gather(1, above)
        words = words.gather(1, above) | (words >> prefix)
        lengths = lengths + prefix
        above = above.gather(1, above)
    tail = (1 << (code.bits - lengths).clamp(min=0)) - 1
    pre = (words << code.depth.bit_length()) | depths  # a path and its extension by zeros differ in depth alone
    post = words | tail  # no code is all ones, so the tail is above every extension
    return torch.where(valid, pre, LAST), torch.where(valid, post, LAST)
