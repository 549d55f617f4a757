"""What a policy is: each step it chooses how much of the drafter's offer the target verifies, for the whole batch.

What an engine must supply, step by step (torch and numpy are all that this package needs)::

    control = policy.start(candidates, costs, depth)   # once a server; costs: anything with StepCosts' three methods
    if not control.drafts(rows, context):              # before the draft: rows in the batch, mean committed tokens
        ...one autoregressive step of the whole batch (the drafter's context must not miss its tokens)
        continue
    ...draft, ONE nested build at candidates.most nodes (its first n nodes are the tree of budget n)
    expected, mass = ...                               # ddbench.adaptive.mass: on the host, or on the build's device
    choice = control.choose(Offer(context, expected, mass))
    ...verify choice.verify_width tokens a row: the first choice.nodes of the build, or of the drafter's own chain
    control.learn(kept)                                # [2, depth], see kept_of; what the target accepted

``expected`` ``[rows, candidates]`` is what each candidate is expected to have accepted in each row: the drafter's
probabilities of its nodes (DDTree paper, proposition 1), each times ``control.factors[on chain, depth - 1]``, summed.
``mass`` ``[candidates, 2, depth]`` are the plain probabilities, summed over rows. The axis of 2 tells nodes off the
drafter's own chain (0) from nodes on it (1): the two are calibrated apart. On a device both are a few small kernels and
one small transfer. A control's decisions are a function of these calls alone: no clock, no randomness, so that a replay
that makes the same calls decides the same. ``learn`` may come later than the next ``choose`` (an engine that schedules
ahead), but for every choice once and in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ddbench.errors import ConfigError

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Kind = Literal["autoregressive", "chain", "tree"]

OFF, ON = 0, 1  # places of the second axis of a mass: off the drafter's own chain, on it


@dataclass(frozen=True)
class Choice:
    """What a step verifies: a tree of ``nodes``, a chain as deep, or nothing but the newest token."""

    kind: Kind
    nodes: int

    @property
    def verify_width(self) -> int:
        """Tokens of one sequence in the target's pass."""
        return self.nodes + 1


@dataclass(frozen=True)
class Candidates:
    """What a policy may choose from; for CUDA graphs, the widths that were captured.

    Attributes:
        trees: node budgets, increasing; all are slices of one build.
        chains: depths of the drafter's own chain, increasing.
        autoregressive: whether a step may do without the drafter.

    Raises:
        ConfigError: none at all, or some that are not increasing numbers from 1.
    """

    trees: tuple[int, ...]
    chains: tuple[int, ...] = ()
    autoregressive: bool = True

    def __post_init__(self) -> None:
        if not self.trees and not self.chains:
            raise ConfigError("candidates", (), "at least one node budget or chain depth")
        for name, numbers in (("trees", self.trees), ("chains", self.chains)):
            if any(b <= a for a, b in zip((0, *numbers), numbers, strict=False)):
                raise ConfigError(f"candidates.{name}", list(numbers), "increasing integers >= 1")

    @cached_property
    def all(self) -> tuple[Choice, ...]:
        """The drafting ones in the order of an offer's axis: trees, then chains."""
        return (*(Choice("tree", nodes) for nodes in self.trees), *(Choice("chain", depth) for depth in self.chains))

    @property
    def most(self) -> int:
        """Nodes that the one build needs; 0 where only chains are offered."""
        return self.trees[-1] if self.trees else 0


@dataclass(frozen=True)
class Offer:
    """What is known when the drafter has spoken.

    Attributes:
        context: mean of the rows' committed tokens.
        expected: ``[rows, candidates]`` tokens that each is expected to have accepted, calibrated, see the module.
        mass: ``[candidates, 2, depth]`` the drafter's own probabilities by depth, off and on its chain, over all rows.
        late: further rows of the batch, of requests that have ended, which add to the price of the step alone.
    """

    context: float
    expected: Floats
    mass: Floats
    late: int = 0

    @property
    def rows(self) -> int:
        return len(self.expected)

    @property
    def batch(self) -> int:
        """Rows that the step is paid for."""
        return self.rows + self.late


class StepCosts(Protocol):
    """Milliseconds of one step of a whole batch (`ddbench.cost` measures them); widths count the root."""

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        """Draft, build, verify and commit of a tree."""

    def chain_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        """The same of a chain."""

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        """One token of every row without a drafter."""


class Control(Protocol):
    """A policy at work: it may remember what it has seen."""

    @property
    def factors(self) -> Floats:
        """``[2, depth]``: by how much the drafter's probabilities are to be multiplied, off and on its chain."""

    def drafts(self, rows: int, context: float) -> bool:
        """Whether this step drafts; False: an autoregressive step, of which nothing more is told."""

    def choose(self, offer: Offer) -> Choice:
        """One of the candidates."""

    def learn(self, kept: Ints) -> None:
        """What came of the last choice, ``[2, depth]``, see :func:`kept_of`."""


class Policy(Protocol):
    """A rule with its constants; ``name`` is what an arm shows."""

    @property
    def name(self) -> str: ...

    def start(self, candidates: Candidates, costs: StepCosts, depth: int) -> Control:
        """A control with nothing learned yet. ``depth``: tokens that the drafter proposes."""


@dataclass(frozen=True)
class Adaptive:
    """A policy with what it chooses from and what it reckons with."""

    policy: Policy
    candidates: Candidates
    costs: StepCosts


def kept_of(accepted: Sequence[int], on_chain: Sequence[int], depth: int) -> Ints:
    """What a control learns of a step, ``[2, depth]``: rows that accepted a node of each depth, off and on the chain.

    Args:
        accepted: tokens that each row accepted, before any cut at a stop or a length.
        on_chain: how many of them, from the first on, are the drafter's own chain.
        depth: tokens that the drafter proposes.
    """
    steps = np.arange(1, depth + 1)
    taken, on = np.asarray(accepted)[:, None], np.asarray(on_chain)[:, None]
    return np.stack([((steps <= taken) & (steps > on)).sum(0), (steps <= on).sum(0)])
