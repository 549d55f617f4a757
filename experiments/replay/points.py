"""The points of a replay: a sweep's own plan over the recording, its cells marked as replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddbench.decoding import Strategy
from ddbench.records import Arm, Cell
from ddbench.replay import Outcome, TraceSet, refuse, replay
from experiments.plan import Dropped, Facts, Planned, make_plan
from experiments.replay.settings import Asked


@dataclass(frozen=True)
class Point:
    """A cell with what it was computed to do; None where it cannot be replayed, as ``planned.unsupported`` says."""

    planned: Planned
    traces: TraceSet
    outcome: Outcome | None


POLICY = "{}: a budget that a policy chooses depends on the batch and on costs (experiment=adaptive replays it)"


def points(asked: Asked, sets: dict[float, TraceSet]) -> tuple[list[Point], tuple[Dropped, ...]]:
    """Every point of the grid, and those that cannot be. ``sets``: the traces by temperature."""
    facts = Facts(**asked.recording.facts, unsupported={})
    plan = make_plan(asked.settings, facts)
    found: list[Point] = []
    for temperature, traces in sets.items():
        cells = [_marked(item.cell, asked) for item in plan.cells if item.cell.temperature == temperature]
        cells = [cell for cell in cells if cell.block == 0]
        reasons = [_refusal(cell.arm, traces) for cell in cells]
        able = [cell for cell, reason in zip(cells, reasons, strict=True) if reason is None]
        outcomes = iter(replay(traces, [strategy_of(cell.arm) for cell in able]))
        found += [
            Point(Planned(cell, reason), traces, next(outcomes) if reason is None else None)
            for cell, reason in zip(cells, reasons, strict=True)
        ]
    return found, plan.dropped


def _refusal(arm: Arm, traces: TraceSet) -> str | None:
    """Why an arm cannot be replayed from these traces; None if it can."""
    if arm.policy is not None:
        return POLICY.format(arm.policy)
    return refuse(strategy_of(arm), traces.depth, traces.k)


def strategy_of(arm: Arm) -> Strategy:
    """The fixed shape of an arm without a policy."""
    return Strategy(arm.strategy, arm.width, arm.depth, arm.nodes, arm.force_spine, arm.min_log_prob)


def _marked(cell: Cell, asked: Asked) -> Cell:
    """A cell that no live one is ever taken for: the mark is part of its id and of its fingerprint."""
    flags = {**cell.arm.flags, "replayed": True, "recording": asked.recording.setup}
    return replace(cell, arm=replace(cell.arm, flags=flags))
