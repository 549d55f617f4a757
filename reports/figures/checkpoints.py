"""Acceptance of several drafters of one target: by category and by depth, a row of panels an arm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from reports.acceptance import acceptance_by_depth
from reports.aggregate import Analysis
from reports.checkpoints import Group, checkpoints_of, groups_of, smallest
from reports.figures.style import Drawing, bars, floats, headline, panels, shared_legend
from reports.frames import Stored

# Okabe and Ito's colours, with a marker and a line each, so that print in grey tells them apart.
LOOKS: tuple[tuple[str, str, Any], ...] = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", ":"),
    ("#E69F00", "v", (0, (5, 1))),
    ("#56B4E9", "P", (0, (3, 1, 1, 1))),
    ("#444444", "X", (0, (1, 3))),
)
FEWEST_ROUNDS = 20  # a conditional rate on fewer rounds is noise and is not drawn
MOST_ARMS = 4
KINDS = {
    "unconditional": "share of rounds that accept at least d",
    "conditional": "share of rounds at d - 1 that also accept d",
}


def by_checkpoint(stored: Stored, analysis: Analysis) -> Drawing | None:
    """Acceptance length by category, and both acceptance rates by depth; None where one drafter was measured."""
    found = checkpoints_of(stored)
    groups = smallest(groups_of(analysis, found)) if found else []
    if not groups:
        return None
    shown = groups[:MOST_ARMS]
    figure, axes = panels(3, len(shown), width=4.2, height=3.6)
    for row, group in enumerate(shown):
        here = axes[3 * row : 3 * row + 3]
        _categories(here[0], group)
        for axis, kind in zip(here[1:], KINDS, strict=True):
            _depths(axis, group, kind)
    shared_legend(figure, [axes[1], *axes], ncols=min(len(found), 4))
    title = "Acceptance by drafter checkpoint"
    n = min(len(group.prompts(None)) for group in shown)
    left_out = f" · {len(groups) - len(shown)} more arms in the tables" if len(groups) > len(shown) else ""
    headline(figure, title, f"n = {n} prompts · bars: 95 %, over prompts · smallest batch size{left_out}")
    caption = (
        "Left: acceptance length by category of prompts, clipped, bonus token included. Middle and right: acceptance "
        f"by depth before clipping; conditional rates are drawn where {FEWEST_ROUNDS} rounds or more reached the "
        "depth. Bars of two drafters may overlap although their paired difference, in the table, excludes 0."
    )
    return Drawing("acceptance_by_checkpoint", "checkpoints", title, caption, figure)


def _categories(axis: Axes, group: Group) -> None:
    """A point a checkpoint and category, side by side."""
    names = group.categories
    for index, name in enumerate(group.points):
        colour, marker, _ = LOOKS[index % len(LOOKS)]
        rows = pd.DataFrame([group.length(name, category).columns("acceptance_length") for category in names]).astype(
            "Float64"
        )
        offset = 0.6 * ((index + 0.5) / len(group.points) - 0.5)
        axis.errorbar(
            np.arange(len(names)) + offset,
            floats(rows["acceptance_length"]),
            yerr=bars(rows, "acceptance_length"),
            color=colour,
            marker=marker,
            linestyle="none",
            capsize=2,
            elinewidth=0.9,
            label=name,
        )
    axis.set_title(f"{group.label}, batch size {group.batch_size}")
    axis.set_ylabel("acceptance length (tokens per round)")
    axis.set_xlabel("category of prompts")
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_ylim(bottom=1.0)


def _depths(axis: Axes, group: Group, kind: str) -> None:
    """A line a checkpoint."""
    deepest = 1
    for index, (name, point) in enumerate(group.points.items()):
        colour, marker, line = LOOKS[index % len(LOOKS)]
        rates = pd.DataFrame(acceptance_by_depth(point))
        if rates.empty:
            continue
        deepest = max(deepest, int(rates["depth"].max()))
        rates[f"{kind}_high"] = rates[f"{kind}_high"].clip(upper=1.0)  # a share
        drawn = rates[rates[kind].notna() & ((kind == "unconditional") | (rates["rounds"] >= FEWEST_ROUNDS))]
        axis.errorbar(
            drawn["depth"],
            floats(drawn[kind].astype("Float64")),
            yerr=bars(drawn.astype("Float64"), kind),
            color=colour,
            marker=marker,
            markersize=4,
            linestyle=line,
            capsize=2,
            elinewidth=0.9,
            label=name,
        )
    axis.set_title(f"{group.label}: {kind}")
    axis.set_xlabel("depth d (drafted tokens from the root)")
    axis.set_ylabel(KINDS[kind])
    axis.set_ylim(0, 1.04)
    axis.set_xticks(range(1, deepest + 1, 2 if deepest > 8 else 1))
