"""What a cost holds for: whether a point lies within what was measured, and the reading of prompts if that was."""

from __future__ import annotations

from collections.abc import Callable

from ddbench.cost.form import Fit
from ddbench.cost.model import CostModel
from ddbench.errors import ConfigError

PASSES = ("ddtree", "dflash")  # kinds of step whose pass of many tokens is one of a prompt's, the best first


def inside(fit: Fit, width: int, batch: int, context: float) -> bool:
    """Whether a point lies within what was measured."""
    try:
        fit(width, batch, context)
    except ConfigError:
        return False
    return True


def prefill_of(cost: CostModel) -> Callable[[float], float] | None:
    """Milliseconds of reading so many tokens; None where that was not measured.

    Up to the longest reading that was measured it is that fit. A reading of few tokens is the host's time, which says
    nothing of one of many: many prompts that enter together are one pass of the target over all their tokens, and so
    take at least what a pass of as many verified tokens was measured to take (base and T of a round's fit;
    beyond its widest pass see :meth:`ddbench.cost.form.Fit.pass_ms`).
    """
    if "prefill" not in cost.fits:
        return None
    longest = cost.fits["prefill"].measured.tokens[1]
    passes = next((cost.fits[kind] for kind in PASSES if kind in cost.fits), None)

    def milliseconds(tokens: float) -> float:
        own = float(cost.prefill_ms(tokens, extrapolate=True))
        return own if passes is None or tokens <= longest else max(own, passes.pass_ms(tokens))

    return milliseconds
