"""How far the drafter's probabilities come true, over all places of the recorded texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ddbench.adaptive import Candidates
from ddbench.replay import Offers, Trace, TraceSet

NODES = 64  # of the trees that are looked at, or as many as were recorded


def calibration(traces: Sequence[Trace]) -> dict[str, Any]:
    """Tokens that the drafter expects to have accepted, and those that are, by depth, off its own chain and on it.

    ``expected`` and ``accepted`` are ``[2][depth]`` sums over all anchors, ``factors`` their ratio: what a policy
    learns, but over every place of the texts alike, where a policy sees those that its rounds begin at. None where
    less than 20 tokens are expected.
    """
    own = TraceSet.of(traces)
    nodes = min(NODES, own.k)
    offers = Offers.of(own, Candidates((nodes,)))
    anchors = np.arange(own.anchors)
    expected = offers.offer(anchors, np.ones((2, own.depth))).mass[0]
    accepted = offers.kept(anchors, 0)
    return {
        "nodes": nodes,
        "anchors": own.anchors,
        "expected": expected.tolist(),
        "accepted": accepted.tolist(),
        "factors": [
            [float(k / e) if e >= 20 else None for k, e in zip(*rows, strict=True)]
            for rows in zip(accepted, expected, strict=True)
        ],
    }
