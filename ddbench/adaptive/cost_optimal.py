"""The budget that brings most tokens a second under a cost model, for a batch whose rows share a verify width.

A text has to be decoded whole, so what a token is worth is the time that it would take otherwise, and that depends on
where it stands: in a passage that the drafter knows well a token more costs little, since the next round would have
brought it too. Let E_r(c) be the tokens that candidate c is expected to bring row r, the bonus token included, and t(c)
the milliseconds of the step. A small step from c to a wider candidate pays where ``sum_r dE_r / E_r > rows * dt / t``:
each row's tokens at the price of its own passage. That is the condition of the largest

    sum_r log E_r(c) - rows * log t(c)

which this policy takes: the geometric mean of the rows' tokens a millisecond; for one row, the largest E(c) / t(c).
The plain sum of E_r instead of the logarithms lets rows that accept anything buy width for those that accept nothing,
and a rate averaged over the whole run as the price of time does so from passage to passage; both were measured to be
slower (docs/adaptive.md).

Autoregressive decoding has E = 1. Whether it wins has to be known before the draft, so it is held against the mean of
``log E_r(c)`` over the rounds so far. Few rounds tell little, and those that begin together all begin a text: until as
many have been seen as are remembered, the drafter has the benefit of two standard errors of that mean. That does not
help a large batch whose first step already looks hopeless, since all of its rows say the same: so a drafter that loses
is asked again soon at first, and ever more seldom.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.adaptive.calibration import Calibration
from ddbench.adaptive.policy import Candidates, Choice, Control, Offer, StepCosts
from ddbench.adaptive.prices import Prices

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class CostOptimal:
    """Constants of the rule.

    Attributes:
        calibrated: learn how far the drafter is to be believed; False takes its probabilities as they are.
        horizon: rounds of one row over which the mean that stands against autoregressive decoding is taken.
        trial: rounds of one row before the drafter can be found to lose against autoregressive decoding.
        doubt: standard errors that are added to the mean until ``horizon`` rounds have been seen.
        looking: while it loses, it is asked again now and then; the share of the time that this may cost.
        first_look: autoregressive steps after which it is asked again in any case; each time after twice as many.
    """

    calibrated: bool = True
    horizon: float = 256.0
    trial: int = 16
    doubt: float = 2.0
    looking: float = 0.005
    first_look: int = 32

    @property
    def name(self) -> str:
        return "cost_optimal" if self.calibrated else "cost_optimal_uncalibrated"

    def start(self, candidates: Candidates, costs: StepCosts, depth: int) -> Control:
        return _Control(self, candidates, Prices(candidates, costs), depth)


class _Control:
    def __init__(self, rule: CostOptimal, candidates: Candidates, prices: Prices, depth: int) -> None:
        self._rule = rule
        self._candidates = candidates
        self._prices = prices
        self._calibration = Calibration(depth)
        self._level: Floats = np.zeros(len(candidates.all))  # mean of log E_r(c) over the rounds remembered
        self._squares: Floats = np.zeros(len(candidates.all))  # mean of its square
        self._remembered = 0.0  # rounds of one row that it stands on
        self._seen = 0  # of all
        self._waited, self._steps = 0.0, 0  # autoregressive milliseconds and steps since the drafter was asked
        self._pause = rule.first_look  # steps after which it is asked in any case
        self._open: deque[tuple[Floats, int]] = deque()  # mass of what was chosen and rows, of steps not yet learned of

    @property
    def factors(self) -> Floats:
        return self._calibration.factors

    def drafts(self, rows: int, context: float) -> bool:
        if not self._candidates.autoregressive or self._seen < self._rule.trial:
            return True
        plain = self._prices.autoregressive(rows, context)
        prices = self._prices.drafting(rows, context)
        rates = self._level + self._benefit() - np.log(prices)
        best = int(rates.argmax())
        lost = 1.0 - float(np.exp(rates[best])) * plain  # share of a drafting round's time
        due = self._steps >= self._pause
        if lost <= 0.0 or due or self._waited * self._rule.looking >= lost * float(prices[best]):
            if due:
                self._pause *= 2
            self._waited, self._steps = 0.0, 0
            return True
        self._waited += plain
        self._steps += 1
        self._remembered *= self._forget(rows)  # what the drafter offered fades, whether it is asked or not
        return False

    def choose(self, offer: Offer) -> Choice:
        gains = np.log1p(offer.expected)
        self._remember(gains)
        prices = self._prices.drafting(offer.batch, offer.context)
        best = int((gains.sum(axis=0) - offer.rows * np.log(prices)).argmax())
        self._open.append((offer.mass[best], offer.rows))
        return self._candidates.all[best]

    def learn(self, kept: Ints) -> None:
        mass, rows = self._open.popleft()
        if self._rule.calibrated:
            self._calibration.learn(mass, kept, rows)

    def _remember(self, gains: Floats) -> None:
        old = self._remembered * self._forget(len(gains))
        self._remembered = old + len(gains)
        self._level = (self._level * old + gains.sum(axis=0)) / self._remembered
        self._squares = (self._squares * old + (gains * gains).sum(axis=0)) / self._remembered
        self._seen += len(gains)

    def _benefit(self) -> Floats:
        """Of the doubt, ``[candidates]``."""
        if self._seen >= self._rule.horizon:
            return np.zeros(len(self._level))
        spread = np.sqrt(np.maximum(self._squares - self._level**2, 0.0))
        found: Floats = self._rule.doubt * spread / np.sqrt(self._seen)
        return found

    def _forget(self, rows: int) -> float:
        return (1.0 - 1.0 / self._rule.horizon) ** rows
