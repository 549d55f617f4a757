"""Which tokens may a filtered draw give, where the logits are known up to rounding alone?

SGLang's torch sampler keeps a token of rank below ``top_k`` that has at most ``top_p`` of the whole distribution
before it. That is a cliff: a token whose mass before it lies within rounding of ``top_p`` is drawn with its full
probability by one kernel, and never by another. So three kinds are told apart: tokens that every rounding keeps, those
that some keeps, and those that none does.

Let no two logits move against each other by more than ``slack``. The ratio of two probabilities then changes by at most
``exp(slack / temperature)``, and so do the odds of any set of tokens; a token more than ``slack`` ahead stays ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Next:
    """The draw after one text, by token, each ``[V]``. ``before``: mass of the tokens ahead of it in the reference.

    ``sure``: kept however logits are rounded. ``possible``: kept by some rounding. All are both without a filter.
    """

    probability: Floats
    before: Floats
    sure: Bools
    possible: Bools


def next_of(logits: NDArray[np.float32], sampling: Mapping[str, Any], slack: float) -> Next:
    """``logits``: ``[V]``, the reference's. ``sampling``: ``temperature`` and, if asked for, ``top_k``, ``top_p``."""
    temperature = float(sampling["temperature"])
    order = np.argsort(-logits, kind="stable")
    negatives = -logits[order].astype(np.float64)  # rising
    weights = np.exp((negatives[0] - negatives) / temperature)
    share = weights / weights.sum()
    upto = np.concatenate([[0.0], np.cumsum(share)])
    most = np.searchsorted(negatives, negatives + slack, side="right") - 1  # tokens that some rounding puts ahead
    least = np.searchsorted(negatives, negatives - slack, side="left")  # those that every one does
    top_k, top_p = sampling.get("top_k", len(order)), sampling.get("top_p", 1.0)
    sure, possible = most < top_k, least < top_k
    if top_p < 1.0:
        limit, factor = top_p / (1.0 - top_p), math.exp(slack / temperature)
        sure &= _odds(upto[most + 1] - share) * factor <= limit
        possible &= _odds(upto[least]) / factor <= limit
    place = np.argsort(order)  # of every token in the order
    return Next(share[place], upto[place], sure[place], possible[place])


def _odds(mass: Floats) -> Floats:
    held = np.clip(mass, 0.0, 1.0)
    rest = 1.0 - held
    return np.divide(held, rest, out=np.full_like(held, np.inf), where=rest > 0)
