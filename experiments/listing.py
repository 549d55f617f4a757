"""What is to be done, before it is: the dry run's points with what they will cost, and a run's first lines."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from experiments.cells import Todo
from experiments.changes import of_strategies
from experiments.estimate import EMITTED, PROMPT_TOKENS, Estimate, server_starts
from experiments.plan import Plan
from experiments.progress import counted, describe, duration, say, warn
from experiments.store import RunFolder


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


def announce(plan: Plan, todo: list[Todo], folder: RunFolder, changed: list[str], part: bool) -> None:
    """What is to be done, in some lines; ``changed``: the settings that differ from those the folder was made with.

    ``part``: the folder has cells of the command's other plans, which are not spoken of.
    """
    say(f"run folder {folder.path}")
    reasons = {point.reason.partition(":")[0] for point in plan.dropped}
    if plan.dropped:
        some = "; ".join(sorted(reasons)[:3]) + ("; ..." if len(reasons) > 3 else "")
        say(f"{counted(len(plan.dropped), 'grid point')} dropped, which cannot be ({some}), see dropped.json")
    done = len(plan.cells) - len(todo)
    if done:
        say(f"{done} of {len(plan.cells)} cells are done already")
    others = folder.ids() - {planned.cell.cell_id for planned in plan.cells}
    if part:
        others = of_strategies(folder.cells, others, {planned.cell.arm.strategy for planned in plan.cells})
    if others:
        verb = "is" if len(others) == 1 else "are"
        kept = f"{counted(len(others), 'cell')} of an earlier plan of this run {verb} kept"
        why = f"settings that differ: {', '.join(changed)}" if changed else "another version, model or prompts"
        warn(f"{kept}, and the report shows both; {why}")
    for reason, count in Counter(item.planned.unsupported for item in todo).items():
        if reason is not None:
            warn(f"{counted(count, 'cell')} unsupported: {reason}")
    measured = [item.seconds for item in todo if item.planned.unsupported is None]
    say(f"{counted(len(measured), 'cell')} to measure, estimated at {duration(sum(measured))}")
