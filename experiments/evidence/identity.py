"""Greedy identity with autoregressive decoding, and a ledger of first differences: are they ties?

How wide a tie may be is fixed by the arithmetic alone:

- bfloat16: the target's logits are numbers of size 8 to 32, whose neighbours lie 1/16 to 1/8 apart, and another batch
  shape moves one by a few of these steps: 0.5.
- float32: all products are exact to 2^-24 but those of attention kernels written in Triton, which multiply at TF32's
  precision: 11 significant bits, so an operand is off by up to 2^-11 of its size. A score of size 10, a sum of
  products whose errors have random signs, is then off by about 0.005, and a weight of the softmax by as much of itself;
  values add 2^-11. That makes 0.1 to 0.5 % of what a head gives, random from head to head and place to place; heads,
  layers and the residual stream average most of it away. A part in a thousand of logits of size 8 to 32 is 0.01 to
  0.03: 0.05.

A wrong tree is off by whole logits. The bfloat16 threshold was there before any run. The float32 one was 0.5 as well
until all float32 runs of `docs/evidence` but those that name 0.05 had been made; the widest gap in them is 0.032.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddbench.metrics import lossless_share

TIES = {"bfloat16": 0.5, "float32": 0.05}  # logits, by dtype
# Ties part few outputs: a share below this is no identity, whatever the ledger says of single differences. Two engines
# of bfloat16 agreed on 0.73 to 0.80 of 144 outputs of 128 tokens, in float32 on 0.96 and more.
LEAST_SHARE = {"bfloat16": 0.5, "float32": 0.9}


@dataclass(frozen=True)
class Difference:
    """``gap``: by how many logits the autoregressive choice leads at the first differing place of a prompt's output.

    None where there is no such number: one output has ended, or the engine's logits are none.
    """

    prompt: int
    place: int
    gap: float | None


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


def summary(differences: Sequence[Difference], dtype: str) -> dict[str, Any]:
    """Counts and the widest gap, None where one has no number; a gap that is no tie of ``dtype`` is unexplained."""
    gaps = [None if each.gap is None or not math.isfinite(each.gap) else abs(each.gap) for each in differences]
    known = [gap for gap in gaps if gap is not None]
    return {
        "differences": len(gaps),
        "widest_gap_logits": max(known, default=0.0) if len(known) == len(gaps) else None,
        "unexplained": sum(gap is None or gap > TIES[dtype] for gap in gaps),
    }


def unexplained(found: Mapping[str, Any], dtype: str, threshold: float) -> int | None:
    """Of a stored summary that was made with ``threshold``: differences that are no tie of ``dtype`` by `TIES`.

    None where the summary does not tell, as it holds no gap but the widest.
    """
    if threshold == TIES[dtype] or found["differences"] == 0:
        return int(found["unexplained"])
    widest = found["widest_gap_logits"]
    return 0 if widest is not None and widest <= TIES[dtype] else None


def same_but_for_ties(by_batch: Mapping[str, Mapping[str, Any]], dtype: str, threshold: float) -> bool | None:
    """Equal at every batch size: all differences are ties, and no fewer outputs are equal than ties leave.

    None where nothing was compared, or where a summary does not tell.
    """
    counts = [unexplained(found, dtype, threshold) for found in by_batch.values()]
    if any(found["share"] < LEAST_SHARE[dtype] for found in by_batch.values()) or any(counts):
        return False
    return None if not counts or None in counts else True
