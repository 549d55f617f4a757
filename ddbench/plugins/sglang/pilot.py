"""An adaptive verify width: each scheduling step takes one of those that were captured, by a `ddbench.adaptive` policy.

``DDTREE_POLICY`` names the policy and turns it on; ``DDTREE_COSTS`` is the cost file of this setup
(`ddbench.cost`); ``DDTREE_WIDTHS`` are the verify widths that are captured beside the server's own, root counted: 1
is a step without the drafter, an autoregressive one.

A step is launched before its own tree is known to the host, so its width is chosen by the last round that has arrived:
one round old, with overlap scheduling two. At equal width the best tree expects no less than the chain, at the same
price here (one graph serves both), so that no chain is among the candidates: a narrow tree stands in its place.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.adaptive.measured import MeasuredCosts
from ddbench.adaptive.named import policy_of
from ddbench.adaptive.policy import Candidates, Choice, Control, Offer, StepCosts, kept_of
from ddbench.cost.model import load_cost
from ddbench.errors import ConfigError
from ddbench.plugins.sglang.offers import Sighting, Sightings
from ddbench.plugins.sglang.options import COSTS, POLICY, WIDTHS, Sizes, usual_widths

Floats = NDArray[np.float64]
NEAR = 0.1  # share by which numbers of parameters may differ: configurations round them
PLAIN = 1  # verify width of a step without the drafter


@dataclass(frozen=True)
class Plan:
    """What is asked for: ``widths`` ascending, the server's own last."""

    policy: str
    costs: Path
    widths: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sizes, environment: Mapping[str, str] | None = None) -> Plan | None:
        """As the environment says; None where it names no policy. Raises ConfigError."""
        found = os.environ if environment is None else environment
        name = found.get(POLICY, "")
        if not name:
            return None
        policy_of(name)
        if not found.get(COSTS):
            raise ConfigError(COSTS, found.get(COSTS, ""), f"the cost file of this setup, since {POLICY} is set")
        return cls(name, Path(found[COSTS]), _widths(found.get(WIDTHS, ""), sizes.verify_width))

    @property
    def candidates(self) -> Candidates:
        trees = tuple(width - 1 for width in self.widths if width != PLAIN)
        return Candidates(trees, autoregressive=PLAIN in self.widths)


def _same(key: str, known: Mapping[str, str], mine: str) -> bool:
    if key == "target":
        return known.get(key, "").endswith(f" {mine}")
    if key == "parameters":
        said = _known(key, known)
        return said.isdigit() and abs(int(said) - int(mine)) <= NEAR * int(mine)
    return known.get(key) == mine


def _known(key: str, known: Mapping[str, str]) -> str:
    return known.get("target", "unknown").partition(" ")[0] if key == "parameters" else known.get(key, "unknown")


def _widths(text: str, own: int) -> tuple[int, ...]:
    if not text:
        return usual_widths(own)
    allowed = f"numbers from 1 to {own - 1} with commas between them: verify widths below the server's own"
    try:
        listed = sorted({int(each) for each in text.split(",")})
    except ValueError:
        raise ConfigError(WIDTHS, text, allowed) from None
    if listed[0] < 1 or listed[-1] >= own:
        raise ConfigError(WIDTHS, text, allowed)
    return (*listed, own)


@dataclass(frozen=True)
class Costs:
    """A cost file as a policy asks it. Batches of more than ``most`` rows, which have no graph, cost what these do."""

    measured: MeasuredCosts
    most: int

    @classmethod
    def of(cls, plan: Plan, setup: Mapping[str, str], rows: int) -> Costs:
        """Reads and checks the file: it is this ``setup``'s and was measured at all widths for up to ``rows``.

        The file's ``target`` is the number of parameters, which need only be near what the server counts, and at its
        end the dimensions.

        Raises:
            ConfigError: it is another's, damaged, or too narrow.
        """
        model = load_cost(plan.costs)
        known = model.fingerprint
        other = {key: mine for key, mine in setup.items() if not _same(key, known, mine)}
        apart = [f"{key} is {_known(key, known)} there and {mine} here" for key, mine in other.items()]
        if apart:
            raise ConfigError(COSTS, str(plan.costs), f"a cost file of this setup ({'; '.join(apart)})")
        trees = np.array([width for width in plan.widths if width != PLAIN])
        for batch in (1, rows):
            model.round_ms(trees, batch, model.fit("ddtree").measured.context[0])
            if PLAIN in plan.widths:
                model.autoregressive_ms(batch, model.fit("autoregressive").measured.context[0])
        return cls(MeasuredCosts(model), rows)

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self.measured.round_ms(verify_width, min(batch, self.most), context)

    def chain_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self.measured.chain_ms(verify_width, min(batch, self.most), context)

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        return self.measured.autoregressive_ms(min(batch, self.most), context)


@dataclass
class Pilot:
    """A policy at work on a server. ``pinned``: a width that is taken whatever the policy says."""

    plan: Plan
    sightings: Sightings
    costs: InitVar[StepCosts]
    depth: int
    control: Control = field(init=False)
    pinned: int | None = field(init=False, default=None)
    width: int = field(init=False)
    taken: Counter[int] = field(default_factory=Counter)  # rounds by width, those of the policy alone

    def __post_init__(self, costs: StepCosts) -> None:
        self.restart(costs)

    def restart(self, costs: StepCosts) -> None:
        """Begins anew with nothing learned, under these costs."""
        self.control = policy_of(self.plan.policy).start(self.plan.candidates, costs, self.depth)
        self.width, self.pinned = self.plan.widths[-1], None

    def pin(self, width: int) -> None:
        """Takes this width from now on; 0 lets the policy choose. Raises ConfigError."""
        if width and width not in self.plan.widths:
            raise ConfigError("ddtree_verify", width, f"0 or one of {', '.join(map(str, self.plan.widths))}")
        self.pinned = width or None

    def next(self, rows: int, context: float) -> int:
        """The verify width of the round that is launched now."""
        for sighting in self.sightings.arrived():
            self._learn(sighting)
        if self.pinned is not None:
            return self.pinned
        width = self._chosen(rows, context)
        self.taken[width] += 1
        return width

    def _chosen(self, rows: int, context: float) -> int:
        if PLAIN in self.plan.widths and not self.control.drafts(rows, context):
            return PLAIN
        return self.width

    def _learn(self, seen: Sighting) -> None:
        """One choice of the control by what a round offered, and at once what that choice would have kept there."""
        mass = seen.mass.astype(np.float64)
        expected: Floats = (mass * self.control.factors).sum(axis=(2, 3))
        choice = self.control.choose(Offer(seen.context, expected, mass.sum(axis=0)))
        self.width = choice.verify_width
        self.control.learn(self._kept(seen, mass.sum(axis=0), choice))

    def _kept(self, seen: Sighting, mass: Floats, choice: Choice) -> Any:
        """Accepted nodes of the choice's tree by depth, off and on the chain, ``[2, depth]``.

        Trees are nested, so that what a narrower one would have kept is known exactly: the path's nodes that are in it.
        Of a wider one the nodes beyond what was verified are taken to keep what is expected of them: they teach
        nothing.
        """
        trees = self.plan.candidates.trees
        inside = (seen.path > 0) & (seen.path < choice.verify_width)
        on = np.take_along_axis(seen.chain, np.maximum(seen.path, 0), axis=1) * inside
        kept = kept_of(inside.sum(axis=1).tolist(), on.sum(axis=1).tolist(), self.depth)
        if choice.verify_width <= seen.width:
            return kept
        beyond = mass[trees.index(choice.nodes)] - mass[trees.index(seen.width - 1)]
        return kept + self.control.factors * beyond

    def describe(self) -> dict[str, Any]:
        """For the server's state."""
        return {
            "policy": self.plan.policy,
            "widths": list(self.plan.widths),
            "pinned": self.pinned,
            "rounds_of_policy": {str(width): count for width, count in sorted(self.taken.items())},
        }
