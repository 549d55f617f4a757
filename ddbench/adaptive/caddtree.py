"""CaDDTree's stopping rule: grow the tree while its own expected tokens a millisecond rise.

From the description of arXiv 2606.01813 (its cost-aware stopping criterion): in the order of the build, before node n
+ 1 is added, theta(n) = (1 + Phi(n)) / (C_draft + C_verify(n + 1)) is compared with theta(n + 1), where Phi is the sum
of the drafter's probabilities over the nodes so far; growth stops when theta no longer rises. With a convex cost theta
has one peak. The prices told here are convex only where they are a fit's own: corrected at measured points
(`ddbench.adaptive.measured`) theta can have several, and the rule stops at the first. The paper decodes one sequence;
for a batch that shares a width, what is added here is that Phi is summed over its rows and the cost is the batch's, so
that for one row it is the rule as published. A budget without a price, since it was not measured at this batch, is no
candidate: growth passes over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.adaptive.policy import Candidates, Choice, Control, Offer, StepCosts
from ddbench.adaptive.prices import Prices
from ddbench.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class CaDDTree:
    """No calibration, no chain, no autoregressive step, nothing remembered: as published."""

    @property
    def name(self) -> str:
        return "caddtree"

    def start(self, candidates: Candidates, costs: StepCosts, depth: int) -> Control:
        """Raises ConfigError where no tree is offered."""
        if not candidates.trees:
            raise ConfigError("policy", self.name, "candidates with at least one tree")
        return _Control(candidates, Prices(candidates, costs), np.ones((2, depth)))


@dataclass(frozen=True)
class _Control:
    candidates: Candidates
    prices: Prices
    factors: Floats

    def drafts(self, rows: int, context: float) -> bool:
        return True

    def choose(self, offer: Offer) -> Choice:
        trees = len(self.candidates.trees)
        expected = offer.rows + offer.expected[:, :trees].sum(axis=0)
        prices = self.prices.drafting(offer.batch, offer.context)[:trees]
        priced = np.flatnonzero(np.isfinite(prices))  # what was not measured is passed over, not a fall
        if not len(priced):
            raise ConfigError("policy", "caddtree", f"a cost of some tree at a batch of {offer.batch}")
        theta = expected[priced] / prices[priced]
        falls = np.flatnonzero(theta[1:] <= theta[:-1])
        return self.candidates.all[int(priced[int(falls[0]) if len(falls) else -1])]

    def learn(self, kept: Ints) -> None:
        return None
