"""The dry run: the points of a plan with what they will cost, and nothing started."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from experiments.estimate import EMITTED, PROMPT_TOKENS, Estimate, server_starts
from experiments.plan import Plan
from experiments.progress import counted, describe, duration, say


def print_plan(
    plan: Plan,
    estimates: Sequence[Estimate],
    done: set[str],
    start_s: float,
    server_per_arm: bool,
    restart: bool = True,
) -> None:
    """A line a cell and one a kind of dropped point on standard output; what the figures rest on, on standard error."""
    lines = [f"{'time':>12}  {'memory':>10}  cell"]
    several = len({planned.cell.workload for planned in plan.cells}) > 1
    for planned, cost in zip(plan.cells, estimates, strict=True):
        state = f" (unsupported: {planned.unsupported})" if planned.unsupported else ""
        state = " (done)" if planned.cell.cell_id in done else state
        lines.append(
            f"{duration(cost.seconds):>12}  {cost.memory_gib:>6.2f} GiB  {describe(planned.cell, several)}{state}"
        )
    dropped = Counter((point.strategy, point.reason) for point in plan.dropped)
    lines += [f"{'dropped':>12}  {count:>10}  {strategy}: {reason}" for (strategy, reason), count in dropped.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    paying = [
        (planned.cell, cost)
        for planned, cost in zip(plan.cells, estimates, strict=True)
        if planned.unsupported is None and planned.cell.cell_id not in done
    ]
    starts = sum(server_starts([cell for cell, _ in paying], server_per_arm, restart))
    total = sum(cost.seconds for _, cost in paying) + starts * start_s
    memory = max((cost.memory_gib for _, cost in paying), default=0.0)
    states = max((cost.states_gib for _, cost in paying), default=0.0)
    of_it = f" (up to {states:.2f} GiB of it recurrent states)" if states else ""
    assumed = ", ".join(f"{name} {value:g}" for name, value in EMITTED.items())
    say(
        f"{counted(len(plan.cells), 'cell')}, {counted(len(plan.dropped), 'point')} dropped; "
        f"about {duration(total)} and {memory:.2f} GiB{of_it}, with {counted(starts, 'start')} of the engine. "
        f"A rough estimate: engine.cost, prompts of {PROMPT_TOKENS} tokens, tokens a round assumed: {assumed}."
    )
