"""What a DDTree server needs of a GPU's memory, computed before it starts.

Weights and KV cache are those of the same drafter's chain. A verify width of W costs beside them the tree's tables, the
logits of W tokens a sequence, and room in the cache for tokens that are scheduled and may be rejected.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddbench.plugins.kernels.words import words_of


@dataclass(frozen=True)
class Layers:
    """The attention layers of a model: how many, with how many key-value heads of what size."""

    layers: int
    kv_heads: int
    head_size: int

    def kv_bytes(self, element: int) -> int:
        """Bytes of one token's keys and values over all layers, ``element`` bytes a number."""
        return 2 * self.layers * self.kv_heads * self.head_size * element


def kv_bytes_per_token(target: Layers, drafter: Layers | None, element: int = 2) -> int:
    """Bytes of one token in the cache: vLLM gives a token room in the target's layers and in the drafter's."""
    return target.kv_bytes(element) + (0 if drafter is None else drafter.kv_bytes(element))


def kv_tokens(cache_bytes: int, block_size: int, target: Layers, drafter: Layers | None, element: int = 2) -> int:
    """Tokens that a cache of ``cache_bytes`` holds, in whole blocks."""
    return cache_bytes // (kv_bytes_per_token(target, drafter, element) * block_size) * block_size


def table_bytes(sequences: int, nodes: int) -> int:
    """Bytes of `TreeState` for ``sequences`` sequences: tokens, parents, depths, masks, rows and paths, int32."""
    width = nodes + 1
    return 4 * sequences * (3 * nodes + width * words_of(width) + 3 + width)


def reserved_tokens(sequences: int, nodes: int, block: int) -> int:
    """Cache slots held for tokens that may be rejected: a verify window a sequence, and the drafter's look-ahead."""
    return sequences * (nodes + 1 + max(nodes, block - 1) + 1)
