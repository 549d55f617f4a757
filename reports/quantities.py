"""What is estimated: functions of sums over prompts and blocks, each on the scale on which its interval is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Quantity(Protocol):
    """A function of sums ``totals`` [..., terms]; the working scale is where its distribution is nearly normal."""

    def exists(self, totals: Floats) -> bool:
        """Whether it has a value at these sums [terms]."""

    def has_bar(self, totals: Floats) -> bool:
        """Whether it has a finite place on the working scale, hence perhaps an interval."""

    def at(self, totals: Floats) -> float:
        """Its value, where it exists."""

    def working(self, totals: Floats) -> Any:
        """The quantity on the working scale: [...]."""

    def shifted(self, value: float, offset: float) -> float:
        """The value that lies ``offset`` from another on the working scale."""

    def gradient(self, totals: Floats) -> Floats:
        """Derivative of the working scale by each sum, at ``totals``: [terms]."""


@dataclass(frozen=True)
class Product:
    """``scale * prod_j totals[j] ** powers[j]``, of non-negative sums; worked with as its logarithm.

    A ratio of sums has powers 1 and -1, a ratio of two such ratios 1, -1, -1 and 1.
    """

    powers: tuple[int, ...]
    scale: float = 1.0

    @cached_property
    def _terms(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.powers)

    @cached_property
    def _exponents(self) -> Floats:
        return np.asarray(self.powers, dtype=np.float64)[self._terms]

    def exists(self, totals: Floats) -> bool:
        used = totals[self._terms]
        return bool(np.isfinite(used).all() and (used[self._exponents < 0] > 0).all())

    def has_bar(self, totals: Floats) -> bool:
        used = totals[self._terms]
        return bool(np.isfinite(used).all() and (used > 0).all())

    def at(self, totals: Floats) -> float:
        """Numerators over denominators, so that equal arms give exactly 1."""
        used, powers = totals[self._terms], self._exponents
        top, bottom = (np.prod(used[side] ** np.abs(powers[side])) for side in (powers > 0, powers < 0))
        return self.scale * float(top / bottom)

    def working(self, totals: Floats) -> Any:
        return (np.log(totals[..., self._terms]) * self._exponents).sum(axis=-1)

    def shifted(self, value: float, offset: float) -> float:
        return value * float(np.exp(offset))

    def gradient(self, totals: Floats) -> Floats:
        slopes = np.zeros(len(totals))
        slopes[self._terms] = self._exponents / totals[self._terms]
        return slopes


@dataclass(frozen=True)
class Difference:
    """``first - second``, two products; worked with as it is."""

    first: Product
    second: Product

    def exists(self, totals: Floats) -> bool:
        return self.first.exists(totals) and self.second.exists(totals)

    def has_bar(self, totals: Floats) -> bool:
        return self.first.has_bar(totals) and self.second.has_bar(totals)

    def at(self, totals: Floats) -> float:
        return self.first.at(totals) - self.second.at(totals)

    def working(self, totals: Floats) -> Any:
        first, second = (part.scale * np.exp(part.working(totals)) for part in (self.first, self.second))
        return first - second

    def shifted(self, value: float, offset: float) -> float:
        return value + offset

    def gradient(self, totals: Floats) -> Floats:
        first, second = (part.at(totals) * part.gradient(totals) for part in (self.first, self.second))
        return first - second
