"""What a run was asked to measure, as far as it stored that: the page must not miss what was never planned."""

from __future__ import annotations

from ddbench.records import STRATEGIES
from reports.frames import Stored


def strategies(stored: Stored) -> list[str]:
    """Strategies of all cells that have a folder, were planned or were dropped from the grid, in the page's order."""
    found = {str(name) for name in stored.cells["strategy"].dropna()}
    found |= {str(row["strategy"]) for row in [*stored.not_run, *stored.dropped] if row.get("strategy")}
    return [name for name in STRATEGIES if name in found] + sorted(found - set(STRATEGIES))


def against_itself(stored: Stored) -> bool:
    """Whether the run is an A/A check: one arm, and nothing to rank."""
    return isinstance(stored.config.get("aa_check"), dict)
