"""Acceptance by depth: unconditional and conditional."""

from __future__ import annotations

import pandas as pd

from reports.aggregate import Analysis
from reports.aggregate import acceptance_by_depth as rates_of
from reports.choose import Scenario, fixed
from reports.figures.style import Drawing, bars, colour, floats, headline, line, marker, panels, prompts
from reports.frames import records

FEWEST_ROUNDS = 20  # a conditional rate on fewer rounds is noise and is not drawn

PANELS = (
    ("unconditional", "Unconditional", "share of rounds that accept at least d"),
    ("conditional", "Conditional", "share of rounds at d - 1 that also accept d"),
)


def acceptance_by_depth(scenario: Scenario, analysis: Analysis) -> Drawing | None:
    """Both rates over depth, one line a strategy (its fixed shape), at the smallest batch size."""
    frame = fixed(scenario.frame)
    frame = frame[frame["acceptance_length"].notna()]
    if frame.empty:
        return None
    size = int(frame["batch_size"].min())
    frame = frame[frame["batch_size"] == size]
    points = {point.row["point_id"]: point for point in analysis.points}
    figure, axes = panels(2, width=5.0, height=4.0, sharex=True)
    deepest = 1
    for row in records(frame):
        rates = pd.DataFrame(rates_of(points[row["point_id"]]))
        if rates.empty:
            continue
        for kind, _, _ in PANELS:
            rates[f"{kind}_high"] = rates[f"{kind}_high"].clip(upper=1.0)  # a share
        deepest = max(deepest, int(rates["depth"].max()))
        for axis, (kind, _, _) in zip(axes, PANELS, strict=True):
            shown = rates[rates[kind].notna() & ((kind == "unconditional") | (rates["rounds"] >= FEWEST_ROUNDS))]
            axis.errorbar(
                shown["depth"],
                floats(shown[kind].astype("Float64")),
                yerr=bars(shown.astype("Float64"), kind),
                color=colour(str(row["strategy"])),
                marker=marker(str(row["strategy"])),
                linestyle=line(str(row["strategy"])),
                capsize=2,
                elinewidth=0.9,
                label=f"{row['label']} ({int(row['rounds'])} rounds)",
            )
    for axis, (_, title, label) in zip(axes, PANELS, strict=True):
        axis.set_title(title)
        axis.set_xlabel("depth d (drafted tokens from the root)")
        axis.set_ylabel(label)
        axis.set_ylim(0, 1.04)
        axis.set_xticks(range(1, deepest + 1))
    axes[0].legend(loc="best")
    title = "Acceptance by depth"
    notes = "bars: 95 %, over prompts"
    headline(figure, title, f"{scenario.title} · batch size {size} · {prompts(frame)} · {notes}")
    caption = (
        f"At batch size {size}, before clipping. Unconditional: share of all rounds that accept at least d drafted "
        "tokens; one plus the sum of this curve is the unclipped acceptance length. Conditional: of the rounds that "
        f"accepted d - 1, the share that accepted one more (drawn where there are {FEWEST_ROUNDS} such rounds or more)."
    )
    return Drawing("acceptance_by_depth", "acceptance", title, caption, figure)
