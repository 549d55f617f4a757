"""Acceptance length against the node budget, one panel a depth, one line a width."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from reports.choose import Scenario, number, usable
from reports.figures.style import (
    Drawing,
    bars,
    colour,
    floats,
    headline,
    marker,
    panels,
    powers_of_two,
    prompts,
    shared_legend,
)

WIDTH_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def acceptance_against_nodes(scenario: Scenario) -> Drawing | None:
    """DDTree's shapes, with the chain and EAGLE of the same depth for reference, at the smallest batch size."""
    frame = usable(scenario.frame)
    trees = frame[(frame["strategy"] == "ddtree") & frame["nodes"].notna() & frame["policy"].isna()]
    if trees.empty:
        return None
    size = int(trees["batch_size"].min())
    frame, trees = frame[frame["batch_size"] == size], trees[trees["batch_size"] == size]
    depths = sorted(trees["depth"].unique(), key=_last_if_null)
    widths = sorted(trees["width"].unique(), key=_last_if_null)
    columns = min(len(depths), 3)
    figure, axes = panels(columns, -(-len(depths) // columns), width=4.6, height=3.8, sharey=True)
    budgets = sorted(int(value) for value in trees["nodes"].unique())
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.85, max(len(widths), 2)))
    for axis, depth in zip(axes, depths, strict=False):
        here = trees[_equals(trees["depth"], depth)]
        for index, width in enumerate(widths):
            mine = here[_equals(here["width"], width)].sort_values("nodes").drop_duplicates("nodes")
            if mine.empty:
                continue
            axis.errorbar(
                floats(mine["nodes"]) * (1 + 0.025 * (index - (len(widths) - 1) / 2)),
                floats(mine["acceptance_length"]),
                yerr=bars(mine, "acceptance_length"),
                color=shades[index],
                marker=WIDTH_MARKERS[index % len(WIDTH_MARKERS)],
                capsize=2,
                elinewidth=0.8,
                label=f"ddtree, width {number(width)}",
            )
        _references(axis, frame, depth)
        powers_of_two(axis, budgets)
        axis.set_title(f"Depth {number(depth)}")
        axis.set_xlabel("drafted nodes (root not counted)")
        axis.set_ylabel("acceptance length (tokens per round)")
        axis.tick_params(labelleft=True)
    for axis in axes[len(depths) :]:
        axis.set_visible(False)
    shared_legend(figure, axes[: len(depths)], ncols=3)
    title = "Acceptance length against nodes"
    notes = "bars: 95 % bootstrap over prompts, markers set apart for sight"
    headline(figure, title, f"{scenario.title} · batch size {size} · {prompts(trees)} · {notes}")
    caption = (
        f"Tokens emitted per round, at batch size {size}, as the node budget grows. Dashed: the linear chain of the "
        "same depth (the nearest below where that was not measured), which drafts as many nodes as it is deep; its "
        "band is its interval. A line that has gone flat gains nothing from more nodes, while every node costs "
        "verify time."
    )
    return Drawing("acceptance_vs_nodes", "acceptance", title, caption, figure)


def _references(axis: Axes, frame: pd.DataFrame, depth: Any) -> None:
    chains = frame[(frame["strategy"] == "dflash") & frame["depth"].notna()]
    if depth is not pd.NA:
        chains = chains[chains["depth"] <= depth]
    if not chains.empty:
        chain = chains.sort_values("depth").iloc[-1]
        height = float(chain["acceptance_length"])
        exact = depth is pd.NA or int(chain["depth"]) == int(depth)
        label = "dflash chain, this depth" if exact else "dflash chain, nearest depth below"
        axis.axhline(height, color=colour("dflash"), linestyle="--", linewidth=1.4, label=label)
        if not pd.isna(chain["acceptance_length_low"]):
            interval = (float(chain["acceptance_length_low"]), float(chain["acceptance_length_high"]))
            axis.axhspan(*interval, color=colour("dflash"), alpha=0.08, linewidth=0)
    eagle = frame[(frame["strategy"] == "eagle") & _equals(frame["depth"], depth)]
    if not eagle.empty:
        x, y = floats(eagle["nodes"]), floats(eagle["acceptance_length"])
        axis.scatter(x, y, color=colour("eagle"), marker=marker("eagle"), s=45, label="eagle, this depth", zorder=4)


def _equals(column: pd.Series[Any], value: Any) -> pd.Series[Any]:
    return column.isna() if value is pd.NA else (column == value).fillna(False).astype(bool)


def _last_if_null(value: Any) -> float:
    return float("inf") if value is pd.NA else float(value)
