"""The form of a fitted cost: milliseconds of one step of a batch, convex in the tokens of the verify pass.

With w the verify width (tokens of a sequence in the target's pass), b the sequences of the batch, t = w x b the tokens
of the pass and c the committed tokens of a sequence::

    ms(w, b, c) = base + T(t) + R(b) + (context_alone + row_context x b + token_context x t) x c

T and R are sums of hinges, ``sum slope_j x max(0, x - knot_j)`` with slopes >= 0: piecewise linear, never falling and
convex. Beyond the largest value that was measured each goes on with the mean slope of the upper half of what was: the
last hinge alone may stand on two points that lie close together. T is the target's pass, R what is paid for each
sequence whatever the width (drafting a block, building a tree), the last term reads the cache: its bytes go with b x c,
its arithmetic with t x c, and an attention kernel in which one block of threads goes through a sequence's whole cache
takes its time with c whatever the batch, as long as the GPU has room for all of them. So for a given batch and context
the cost is convex in w as far as was measured, which is what rules that stop at the first loss rely on (CaDDTree, arXiv
2606.01813).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddbench.errors import ConfigError

Floats = NDArray[np.float64]
AXES = ("verify_width", "batch", "context")


@dataclass(frozen=True)
class Hinges:
    """``sum slopes[j] * max(0, x - knots[j])``: 0 at the first knot and before, slopes in ms a unit, none negative."""

    knots: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()

    def __call__(self, x: Floats) -> Floats:
        if not self.knots:
            return np.zeros_like(x)
        above = np.maximum(0.0, x[..., None] - np.asarray(self.knots))
        found: Floats = above @ np.asarray(self.slopes)
        return found

    def carried_on(self, x: Floats, measured: tuple[float, float]) -> Floats:
        """The sum up to the end of what was measured, and past it on with the mean slope of the upper half."""
        low, high = measured
        middle = max(low, high / 2)
        half, most = self(np.asarray([middle, high]))
        slope = (most - half) / (high - middle) if high > middle else 0.0
        found: Floats = self(np.minimum(x, high)) + slope * np.maximum(0.0, x - high)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Hinges:
        return cls(tuple(map(float, data["knots"])), tuple(map(float, data["slopes"])))


@dataclass(frozen=True)
class Range:
    """What was measured, both ends included. ``tokens``: verify width x batch of a point, not a product of ends."""

    verify_width: tuple[float, float]
    batch: tuple[float, float]
    context: tuple[float, float]
    tokens: tuple[float, float]

    def check(self, verify_width: Floats, batch: Floats, context: Floats) -> None:
        """Raises ConfigError, naming the axis, where a value lies outside of what was measured."""
        given = {
            "verify_width": verify_width,
            "batch": batch,
            "context": context,
            "verify_width x batch": verify_width * batch,
        }
        limits = (self.verify_width, self.batch, self.context, self.tokens)
        for (axis, values), (low, high) in zip(given.items(), limits, strict=True):
            outside = ~((values >= low) & (values <= high))
            if outside.any():
                allowed = f"{low:g} to {high:g}, the range that the cost file was measured in"
                raise ConfigError(axis, float(values[outside].flat[0]), allowed)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Range:
        pairs = {name: (float(low), float(high)) for name, (low, high) in data.items()}
        return cls(**pairs)


@dataclass(frozen=True)
class Fit:
    """A fitted cost of one kind of step; see the module for its formula. Milliseconds."""

    base: float
    tokens: Hinges
    rows: Hinges
    row_context: float
    token_context: float
    measured: Range
    context_alone: float = 0.0  # files that were written before it have none

    def __call__(
        self, verify_width: ArrayLike, batch: ArrayLike, context: ArrayLike, extrapolate: bool = False
    ) -> Floats:
        """Milliseconds, of the shape that the three broadcast to.

        Raises:
            ConfigError: a value outside the measured ranges, unless ``extrapolate``.
        """
        given = (np.asarray(each, dtype=np.float64) for each in (verify_width, batch, context))
        width, rows, length = np.broadcast_arrays(*given)
        if not extrapolate:
            self.measured.check(width, rows, length)
        tokens = width * rows
        reading = (self.context_alone + self.row_context * rows + self.token_context * tokens) * length
        passes = self.tokens.carried_on(tokens, self.measured.tokens)
        found: Floats = self.base + passes + self.rows.carried_on(rows, self.measured.batch) + reading
        return found

    def pass_ms(self, tokens: float) -> float:
        """Base and T: what a pass of so many tokens takes, beside what goes with sequences and with their cache."""
        return self.base + float(self.tokens.carried_on(np.asarray(tokens, dtype=np.float64), self.measured.tokens))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fit:
        """The inverse of :meth:`to_dict`, from JSON."""
        return cls(
            base=float(data["base"]),
            tokens=Hinges.from_dict(data["tokens"]),
            rows=Hinges.from_dict(data["rows"]),
            row_context=float(data["row_context"]),
            token_context=float(data["token_context"]),
            measured=Range.from_dict(data["measured"]),
            context_alone=float(data.get("context_alone", 0.0)),
        )
