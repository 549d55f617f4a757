"""The cost model as a policy asks it: all candidates of a step at once, each batch and context looked up only once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.adaptive.policy import Candidates, StepCosts

Floats = NDArray[np.float64]

GRAIN = 32  # tokens of context that share a price


class Prices:
    """Milliseconds of a step. A context is priced at the multiple of ``GRAIN`` below it (never below 1 token)."""

    def __init__(self, candidates: Candidates, costs: StepCosts) -> None:
        self._costs = costs
        self._trees = np.array(candidates.trees, dtype=np.int64) + 1
        self._chains = np.array(candidates.chains, dtype=np.int64) + 1
        self._drafting: dict[tuple[int, int], Floats] = {}
        self._plain: dict[tuple[int, int], float] = {}

    def drafting(self, rows: int, context: float) -> Floats:
        """``[candidates]``."""
        key = (rows, _grain(context))
        if key not in self._drafting:
            trees = _all(self._costs.round_ms(self._trees, *key), self._trees) if len(self._trees) else self._trees
            chains = _all(self._costs.chain_ms(self._chains, *key), self._chains) if len(self._chains) else self._chains
            self._drafting[key] = np.concatenate([trees, chains]).astype(np.float64)
        return self._drafting[key]

    def autoregressive(self, rows: int, context: float) -> float:
        key = (rows, _grain(context))
        if key not in self._plain:
            self._plain[key] = float(np.asarray(self._costs.autoregressive_ms(*key)).reshape(-1)[0])
        return self._plain[key]


def _grain(context: float) -> int:
    return max(1, int(context) // GRAIN * GRAIN)


def _all(values: Any, like: NDArray[Any]) -> Floats:
    found: Floats = np.broadcast_to(np.asarray(values, dtype=np.float64), like.shape)
    return found
