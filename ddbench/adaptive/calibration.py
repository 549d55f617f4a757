"""How far the drafter's probabilities can be believed, learned while decoding.

A block drafter's distributions at later depths are marginals: they do not know which token the tree took before. The
sum of path probabilities then expects more than comes, the more so off the drafter's own chain. What is learned is one
factor a depth, on and off the chain apart: tokens that were accepted there / tokens that the drafter expected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


@dataclass
class Calibration:
    """Factors ``[2, depth]`` by which a mass (see :class:`ddbench.adaptive.policy.Offer`) is to be multiplied.

    Each is ``(accepted + prior) / (expected + prior)``, sums over the rounds of rows so far, where a round is forgotten
    by a factor of 1 - 1 / horizon with every later one: at 1024 and acceptances of half the time a factor stands on
    about 500 accepted tokens, a standard error of some 4 %.

    Attributes:
        depth: tokens that the drafter proposes.
        horizon: rounds of one row that are remembered.
        prior: expected tokens of a drafter that is right, taken to have been seen beforehand.
    """

    depth: int
    horizon: float = 1024.0
    prior: float = 4.0
    rounds: float = 0.0  # remembered: the n of the factors
    _kept: Floats = field(init=False, repr=False)
    _expected: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._kept = np.zeros((2, self.depth))
        self._expected = np.zeros((2, self.depth))
        self.factors: Floats = np.ones((2, self.depth))

    def learn(self, expected: Floats, kept: Ints, rows: int) -> None:
        """One step of ``rows`` rows: the mass of what was verified and what of it was accepted, each ``[2, depth]``."""
        remembered = (1.0 - 1.0 / self.horizon) ** rows
        self.rounds = self.rounds * remembered + rows
        self._kept = self._kept * remembered + kept
        self._expected = self._expected * remembered + expected
        self.factors = (self._kept + self.prior) / (self._expected + self.prior)
