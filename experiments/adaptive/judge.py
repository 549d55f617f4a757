"""Prices of measured steps, to judge what was decided by a fit: nothing is fitted here but the context's share.

A policy that is priced by the very fit it chooses by never pays for an error of that fit. Here a step costs what its
width and batch size were measured to take, at widths that the fit may never have seen; between measured batch sizes in
a line, between measured widths likewise, beyond them nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.cost import CostModel, Fit, Point
from experiments.step_cost.against import measured_of
from experiments.step_cost.evidence import points_of

Floats = NDArray[np.float64]
NEAR = 1.3  # points at a context of more than so many times the shortest one say nothing of the table


@dataclass(frozen=True)
class Table:
    """Of one kind of step: ``ms`` ``[widths, batches]`` at context 0, not a number where nothing was measured."""

    fit: Fit
    widths: Floats
    batches: Floats
    ms: Floats

    @classmethod
    def of(cls, points: Sequence[Point], fit: Fit) -> Table:
        """Medians of the points of one width and batch, less what the fit says of their context."""
        shortest = min(point.context for point in points)
        found: dict[tuple[int, int], list[float]] = {}
        for point in points:
            if point.context <= NEAR * shortest:
                size = point.verify_width, point.batch
                told = fit(*size, point.context, extrapolate=True) - fit(*size, 0.0, extrapolate=True)
                found.setdefault(size, []).append(point.ms - float(told))
        widths, batches = (np.array(sorted({size[axis] for size in found}), dtype=np.float64) for axis in (0, 1))
        ms = np.full((len(widths), len(batches)), np.nan)
        for (width, batch), values in found.items():
            ms[np.searchsorted(widths, width), np.searchsorted(batches, batch)] = np.median(values)
        return cls(fit, widths, batches, ms)

    def __call__(self, width: Any, batch: Any, context: Any) -> Floats:
        """Milliseconds, of the shape that the three broadcast to."""
        parts = np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in (width, batch, context)))
        table = np.zeros(parts[0].shape)
        for row, across in _between(self.widths, parts[0]):
            for column, along in _between(self.batches, parts[1]):
                share = across * along
                table = table + np.where(share == 0, 0.0, share * self.ms[row, column])
        read = self.fit(*parts, extrapolate=True) - self.fit(parts[0], parts[1], 0.0, extrapolate=True)
        found: Floats = np.where(np.isnan(table), np.inf, table + read)
        return found


@dataclass(frozen=True)
class Judge:
    """:class:`ddbench.adaptive.policy.StepCosts` of tables by kind of step; infinite where nothing was measured.

    ``left_out``: rows of the evidence that were unsteady, and price nothing.
    """

    tables: Mapping[str, Table]
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, cost: CostModel, place: str, block: int) -> Judge:
        """The points of a cost file and the round times of an evidence file of the same setup.

        Raises:
            ConfigError: no such file, one of another engine, version, precision, GPU or model, or without round times.
        """
        times = measured_of(cost, place, "adaptive.judge").get("round_ms") or {}
        left_out: list[str] = []
        more = points_of(times, block, left_out, "adaptive.judge", place)
        kinds = {kind: [*points, *more.get(kind, ())] for kind, points in cost.points.items() if kind != "prefill"}
        return cls({kind: Table.of(points, cost.fit(kind)) for kind, points in kinds.items()}, tuple(left_out))

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self.tables["ddtree"](verify_width, batch, context)

    def chain_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self.tables["dflash"](verify_width, batch, context)

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        return self.tables["autoregressive"](1, batch, context)


def _between(knots: Floats, x: Floats) -> tuple[tuple[Any, Floats], tuple[Any, Floats]]:
    """The knots on either side of x and the share of each; shares are not numbers outside of them all."""
    high = np.clip(np.searchsorted(knots, x), 0, len(knots) - 1)
    low = np.where(knots[high] == x, high, np.maximum(high - 1, 0))
    gap = np.where(high > low, knots[high] - knots[low], 1.0)
    share = np.where((x < knots[0]) | (x > knots[-1]), np.nan, (x - knots[low]) / gap)
    return (low, 1.0 - share), (high, share)
