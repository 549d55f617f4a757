"""What a cost file was measured in, the reading of prompts apart."""

from __future__ import annotations

from ddbench.cost import CostModel, Point


def covered(cost: CostModel) -> str:
    """In words: verify widths, batch sizes and committed tokens of a sequence, from least to most."""
    points = _steps(cost)
    parts = {
        "verify width": [point.verify_width for point in points],
        "batch": [point.batch for point in points],
        "context": [point.context for point in points],
    }
    return ", ".join(f"{name} {min(own):g} to {max(own):g}" for name, own in parts.items())


def contexts(cost: CostModel) -> tuple[float, float]:
    """The least and the most committed tokens of a sequence."""
    found = [point.context for point in _steps(cost)]
    return min(found), max(found)


def _steps(cost: CostModel) -> list[Point]:
    return [point for kind, own in cost.points.items() if kind != "prefill" for point in own]
