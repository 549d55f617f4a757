"""What telemetry says of a cell, in its outcome."""

from __future__ import annotations

from dataclasses import replace

from runners.base import CellOutcome
from runners.telemetry.cooling import Start


def noted(outcome: CellOutcome, start: Start, *doubts: str | None) -> CellOutcome:
    """The outcome with how the cell began; one that is ok is suspect where there are doubts."""
    problems = [each for each in (start.problem, *doubts) if each]
    told = replace(outcome, start_temperature_c=start.temperature_c, cooling_s=start.waited_s)
    if not problems or outcome.status not in ("ok", "suspect"):
        return told
    return replace(told, status="suspect", reason="; ".join([*filter(None, [outcome.reason]), *problems]))
