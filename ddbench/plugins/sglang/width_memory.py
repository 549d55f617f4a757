"""What graphs of further verify widths take (`pilot`): tables of their own, inputs, and each graph's features.

Logits, attention buffers and mask are the widest pass's, on which all are captured (`stages`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddbench.plugins.kernels.words import words_of

OFFER = 4  # bytes of a number of an offer


def narrow_bytes(
    widths: Sequence[int], block: int, requests: int, inputs: Callable[[int], int], features: Callable[[int], int]
) -> int:
    """Bytes of the graphs of ``widths``.

    Args:
        block: the drafter's; SGLang has one set of inputs of a size, and its graphs have those of its own width.
        requests: rows of the tables.
        inputs, features: bytes by width, as `memory.parts` has them.
    """
    own = sum(features(width) + (0 if width == block else inputs(width)) for width in widths)
    return own + sum(table_bytes(width, requests) for width in widths)


def table_bytes(width: int, rows: int) -> int:
    """Of a `stages.Stage`: its trees, slots and positions."""
    return rows * width * (5 * 8 + 2 * 4 + 4 * words_of(width)) + 5 * 4


def offer_bytes(rows: int, width: int, block: int, budgets: int) -> int:
    """What a policy is told (`offers.Offers`), ``width`` the server's own."""
    return rows * OFFER * (2 * budgets * (block - 1) + 2 * width) + OFFER * (budgets * (width - 1) + block - 1)
