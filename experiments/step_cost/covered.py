"""What a cost file was measured in, the reading of prompts apart."""

from __future__ import annotations

from ddbench.cost import CostModel

AXES = {"verify width": "verify_width", "batch": "batch", "context": "context"}


def covered(cost: CostModel) -> str:
    """In words: verify widths, batch sizes and committed tokens of a sequence, from least to most."""
    parts = {name: _ends(cost, axis) for name, axis in AXES.items()}
    return ", ".join(f"{name} {least:g} to {most:g}" for name, (least, most) in parts.items())


def contexts(cost: CostModel) -> tuple[float, float]:
    """The least and the most committed tokens of a sequence."""
    return _ends(cost, "context")


def _ends(cost: CostModel, axis: str) -> tuple[float, float]:
    """Of the ranges that the fits hold of their own points."""
    ranges = [getattr(fit.measured, axis) for kind, fit in cost.fits.items() if kind != "prefill"]
    return min(least for least, _ in ranges), max(most for _, most in ranges)
