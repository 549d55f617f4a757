"""What a cost holds for: whether a point lies within what was measured, and the reading of prompts if that was."""

from __future__ import annotations

from collections.abc import Callable

from ddbench.cost.form import Fit
from ddbench.cost.model import CostModel
from ddbench.errors import ConfigError


def inside(fit: Fit, width: int, batch: int, context: float) -> bool:
    """Whether a point lies within what was measured."""
    try:
        fit(width, batch, context)
    except ConfigError:
        return False
    return True


def prefill_of(cost: CostModel) -> Callable[[float], float] | None:
    """Milliseconds of reading so many tokens; None where that was not measured."""
    if "prefill" not in cost.fits:
        return None
    return lambda tokens: float(cost.prefill_ms(tokens, extrapolate=True))
