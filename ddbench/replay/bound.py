"""The oracle: the least time in which the texts could have come, for whoever knew them beforehand.

It knows at every anchor what each candidate would accept, so that the fastest way through a text is a shortest path:
anchors are places, candidates are edges from anchor i to i + accepted + 1, and an edge costs the row's share of a step.
In a batch the rows share a width and the price of a step, which is left out: each row may choose for itself, and pays
``min over b <= batch of t(b) / b``. No schedule of the batch can do better, so the rate is an upper bound; for one row
it is the best that any policy could reach. A comparison only: no engine knows its text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.adaptive import StepCosts
from ddbench.replay.offers import Offers

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


def least_ms(offers: Offers, costs: StepCosts, batch_size: int) -> Floats:
    """Least milliseconds of each request, ``[requests]``, as its share of a batch of at most ``batch_size`` rows.

    Exact for costs that are linear in the context, as `ddbench.cost` fits them: then a step costs the mean of what its
    rows would cost.
    """
    traces = offers.traces
    price = _shares(offers, costs, batch_size)
    accepted = np.concatenate([offers.accepted, np.zeros((traces.anchors, 1), dtype=np.int64)], axis=1)
    count = traces.ends - traces.starts
    longest = int(count.max(initial=0))
    left = np.zeros((len(count), longest + 1))  # [r, i]: least milliseconds from anchor i of request r on
    for place in range(longest - 1, -1, -1):
        rows = np.flatnonzero(count > place)
        anchors = traces.starts[rows] + place
        there = np.minimum(place + accepted[anchors] + 1, count[rows, None])
        left[rows, place] = (price[anchors] + left[rows[:, None], there]).min(axis=1)
    found: Floats = left[:, 0]
    return found


def bound_tokens_per_s(offers: Offers, costs: StepCosts, batch_size: int) -> float:
    """Tokens after the first over the least time: no policy is faster."""
    tokens = int((offers.traces.ends - offers.traces.starts).sum())
    return tokens / float(least_ms(offers, costs, batch_size).sum()) * 1e3


def _shares(offers: Offers, costs: StepCosts, batch_size: int) -> Floats:
    """A row's least share of a step with each candidate, last an autoregressive one: ``[anchors, candidates + 1]``."""
    context = offers.traces.context.astype(np.float64)
    candidates = offers.candidates
    found = np.full((len(context), len(candidates.all) + 1), np.inf)
    for rows in range(1, batch_size + 1):
        for place, choice in enumerate(candidates.all):
            price = costs.round_ms if choice.kind == "tree" else costs.chain_ms
            found[:, place] = np.minimum(found[:, place], price(choice.verify_width, rows, context) / rows)
        if candidates.autoregressive:
            found[:, -1] = np.minimum(found[:, -1], costs.autoregressive_ms(rows, context) / rows)
    return found
