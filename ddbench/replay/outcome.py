"""From anchor to anchor: the rounds of a request, given how many tokens each anchor accepts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.replay.trace import TraceSet

Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Outcome:
    """Counts of every request under one strategy, as ``requests.parquet`` has them: each ``[requests]``.

    ``histogram`` ``[requests, depth + 1]``: [r, a] rounds of request r accepted a drafted tokens, before clipping.
    """

    rounds: Ints
    drafted: Ints
    accepted: Ints
    accepted_raw: Ints
    histogram: Ints


Offer = Callable[[Ints, Ints, Ints], tuple[Ints, Ints]]
"""(strategy, request, anchor) of rounds that begin together, each ``[n]``: to (accepted before clipping, drafted)."""


def walk(traces: TraceSet, strategies: int, offer: Offer) -> list[Outcome]:
    """Walks every request under ``strategies`` ways of drafting at once.

    A round at anchor i that accepts a tokens emits them and a bonus token, so that the next one begins at i + a + 1;
    the last one is cut where the output ends, as the reference engine cuts it.
    """
    requests, depth = len(traces.starts), traces.depth
    strategy, request = (part.ravel() for part in np.indices((strategies, requests)))
    anchor = traces.starts[request]
    alive = np.flatnonzero(anchor < traces.ends[request])
    counts = {name: np.zeros(strategies * requests, dtype=np.int64) for name in ("rounds", "drafted", "kept", "raw")}
    histogram = np.zeros((strategies * requests, depth + 1), dtype=np.int32)
    strategy, request, anchor = strategy[alive], request[alive], anchor[alive]
    while len(alive):
        accepted, drafted = offer(strategy, request, anchor)
        left = traces.ends[request] - anchor  # tokens that are still to be emitted
        emitted = np.minimum(accepted + 1, left)
        counts["rounds"][alive] += 1
        counts["drafted"][alive] += drafted
        counts["kept"][alive] += np.minimum(accepted, emitted)
        counts["raw"][alive] += accepted
        histogram[alive, accepted] += 1
        on = accepted + 1 < left
        anchor = (anchor + accepted + 1)[on]
        alive, strategy, request = alive[on], strategy[on], request[on]
    shaped = {name: values.reshape(strategies, requests) for name, values in counts.items()}
    bars = histogram.reshape(strategies, requests, depth + 1)
    return [
        Outcome(shaped["rounds"][s], shaped["drafted"][s], shaped["kept"][s], shaped["raw"][s], bars[s])
        for s in range(strategies)
    ]
