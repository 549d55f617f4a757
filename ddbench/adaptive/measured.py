"""A cost file as policies ask it: inside what was measured, but for the context, which is carried on in a line.

Texts are shorter and longer than the contexts of a measurement, and in a fitted cost the context counts in a line.
Widths and batches have edges where kernels change, so there nothing is carried on: a candidate that was not measured
at a batch costs infinitely much there and is never chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ddbench.adaptive.policy import Candidates

if TYPE_CHECKING:
    from ddbench.cost import CostModel


@dataclass(frozen=True)
class MeasuredCosts:
    """:class:`ddbench.adaptive.policy.StepCosts` from a cost file."""

    model: CostModel

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
        return np.where(inside, fit(width, rows, context, extrapolate=True), np.inf)


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
