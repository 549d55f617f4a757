"""The policy that always does the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.adaptive.policy import Candidates, Choice, Control, Offer, StepCosts
from ddbench.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Fixed:
    """``choice`` at every step, which must be one of the candidates."""

    choice: Choice

    @property
    def name(self) -> str:
        return f"fixed:{self.choice.kind}:{self.choice.nodes}"

    def start(self, candidates: Candidates, costs: StepCosts, depth: int) -> Control:
        """Raises ConfigError for a choice that is no candidate."""
        known = (*candidates.all, *([Choice("autoregressive", 0)] if candidates.autoregressive else []))
        if self.choice not in known:
            raise ConfigError("policy", self.name, f"one of {', '.join(f'{c.kind}:{c.nodes}' for c in known)}")
        return _Control(self.choice, np.ones((2, depth)))


@dataclass(frozen=True)
class _Control:
    choice: Choice
    factors: Floats

    def drafts(self, rows: int, context: float) -> bool:
        return self.choice.kind != "autoregressive"

    def choose(self, offer: Offer) -> Choice:
        return self.choice

    def learn(self, kept: Ints) -> None:
        return None
