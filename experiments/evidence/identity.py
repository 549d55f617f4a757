"""Greedy identity with autoregressive decoding, and a ledger of first differences: are they ties?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddbench.metrics import lossless_share

# Fixed before any run. The target's logits are bfloat16 numbers of size 8 to 32, whose neighbours lie 1/16 to 1/8
# apart, and another batch shape moves one by a few of these steps. A wrong tree is off by whole logits.
TIE_LOGITS = 0.5


@dataclass(frozen=True)
class Difference:
    """``gap``: by how many logits the autoregressive choice leads at the first differing place of a prompt's output."""

    prompt: int
    place: int
    gap: float


@dataclass(frozen=True)
class Fork:
    """Where two outputs of one prompt part: after ``place`` tokens that they share, one goes on with ``ours``.

    The tokens are None where one output has ended: no tie explains that.
    """

    prompt: int
    place: int
    ours: int | None
    theirs: int | None


def forks(tokens: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> list[Fork]:
    """Where outputs first differ from the reference's, for the prompts whose outputs do."""
    found = []
    for index, (one, other) in enumerate(zip(tokens, reference, strict=True)):
        pairs = list(zip(one, other, strict=False))
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if place is not None:
            found.append(Fork(index, place, one[place], other[place]))
        elif len(one) != len(other):
            found.append(Fork(index, len(pairs), None, None))
    return found


def identity_share(tokens: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> float:
    """Share of prompts whose output equals the reference's, token for token."""
    share = lossless_share(dict(enumerate(tokens)), dict(enumerate(reference)))
    assert share is not None
    return share


def summary(differences: Sequence[Difference]) -> dict[str, Any]:
    """Counts and the widest gap; a gap that is no tie is counted as unexplained."""
    gaps = [abs(difference.gap) for difference in differences]
    return {
        "differences": len(gaps),
        "widest_gap_logits": max(gaps, default=0.0),
        "unexplained": sum(gap > TIE_LOGITS for gap in gaps),
    }
