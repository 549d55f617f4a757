"""A cost file as policies ask it: inside what was measured, but for the context, which is carried on in a line.

Texts are shorter and longer than the contexts of a measurement, and in a fitted cost the context counts in a line.
Widths and batches have edges where kernels change, so there nothing is carried on: a candidate that was not measured
at a batch costs infinitely much there and is never chosen.

A kernel that steps makes a cost that no convex fit follows, and a policy that believes the fit then passes over the
width that is cheap. So the fit is taken times what it was found to be off by: measured over fitted at the points, in a
line from one measured batch size to the next, and from one measured width to the next over its logarithm. The factors
are of the least measured context, where almost the whole grid is measured: there a measured point has its measured
price. At longer contexts the same factor stands before the whole price, the share of the context included, so that a
point measured there keeps an error (SGLang on an H200, four times the context: at most 3.6 %).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddbench.adaptive.policy import Candidates

if TYPE_CHECKING:
    from ddbench.cost import CostModel, Fit, Point

Floats = NDArray[np.float64]
NEAR = 1.3  # a point at a context of more than so many times the shortest one corrects nothing


@dataclass(frozen=True)
class MeasuredCosts:
    """:class:`ddbench.adaptive.policy.StepCosts` from a cost file."""

    model: CostModel

    @cached_property
    def _off(self) -> dict[str, dict[int, tuple[Floats, Floats]]]:
        return {kind: _factors(points, self.model.fit(kind)) for kind, points in self.model.points.items()}

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self._inside("ddtree", verify_width, batch, context)

    def chain_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self._inside("dflash", verify_width, batch, context)

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        return self._inside("autoregressive", 1, batch, context)

    def _inside(self, kind: str, verify_width: Any, batch: Any, context: Any) -> Any:
        fit = self.model.fit(kind)
        width, rows = np.asarray(verify_width, dtype=np.float64), np.asarray(batch, dtype=np.float64)
        parts = (width, fit.measured.verify_width), (rows, fit.measured.batch), (width * rows, fit.measured.tokens)
        inside = np.all(np.broadcast_arrays(*((low <= x) & (x <= high) for x, (low, high) in parts)), axis=0)
        found = fit(width, rows, context, extrapolate=True) * _between(self._off.get(kind, {}), width, rows)
        return np.where(inside, found, np.inf)


def _factors(points: Sequence[Point], fit: Fit) -> dict[int, tuple[Floats, Floats]]:
    """Measured over fitted by width: batch sizes, and at each the median of the points at about the least context."""
    shortest = min((point.context for point in points), default=0.0)
    by_size: dict[tuple[int, int], list[float]] = {}
    for point in points:
        if point.context <= NEAR * shortest:
            told = float(fit(point.verify_width, point.batch, point.context, extrapolate=True))
            by_size.setdefault((point.verify_width, point.batch), []).append(point.ms / told)
    found: dict[int, tuple[Floats, Floats]] = {}
    for width in sorted({width for width, _ in by_size}):
        batches = sorted(batch for own, batch in by_size if own == width)
        factors = [float(np.median(by_size[width, batch])) for batch in batches]
        found[width] = np.array(batches, dtype=np.float64), np.array(factors)
    return found


def _between(factors: dict[int, tuple[Floats, Floats]], width: Floats, rows: Floats) -> Floats:
    """The factor at each width and batch; beyond a width's batch sizes, or beyond all widths, that of the last one."""
    width, rows = np.broadcast_arrays(width, rows)
    if not factors:
        return np.ones(width.shape)
    widths = np.log(np.array(list(factors), dtype=np.float64))
    by_width = np.stack([np.interp(rows, *each) for each in factors.values()])
    at = np.interp(np.log(np.maximum(width, 1.0)), widths, np.arange(len(widths)))  # place among the widths
    low = np.floor(at).astype(np.int64)
    left, right = (
        np.take_along_axis(by_width, place[None], 0)[0] for place in (low, np.minimum(low + 1, len(widths) - 1))
    )
    found: Floats = left + (at - low) * (right - left)
    return found


def why_not(model: CostModel, candidates: Candidates, batch_size: int) -> str | None:
    """Why no policy can reckon with this cost for batches of up to so many rows, in one line; None if it can.

    A batch shrinks as requests end, so every size below counts too.
    """
    lacking = [kind for kind in ("ddtree", "dflash", "autoregressive") if kind not in model.fits]
    if lacking:
        return f"its cost file has no {' and no '.join(lacking)} steps"
    costs = MeasuredCosts(model)
    for rows in range(1, batch_size + 1):
        widths = np.array(candidates.trees) + 1
        if not np.isfinite(costs.round_ms(widths, rows, 1)).any() or not np.isfinite(costs.autoregressive_ms(rows, 1)):
            low, high = model.fit("ddtree").measured.batch
            return f"its cost file was not measured at a batch of {rows} (trees: {low:g} to {high:g})"
    return None
