"""Speed-up against batch size, with both baselines."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from reports.choose import Scenario, best, fixed, ordered_strategies
from reports.crossover import crossovers
from reports.figures.style import (
    Drawing,
    bars,
    colour,
    floats,
    headline,
    line,
    marker,
    panels,
    powers_of_two,
    prompts,
    shared_legend,
)

CROSSOVER = "crossover"
BASELINES = (("autoregressive", "autoregressive decoding"), ("dflash", "the deepest DFlash chain"))


def against_batch_size(scenario: Scenario) -> Drawing | None:
    """A panel a baseline: one fixed shape per strategy as lines, the best of each batch size as hollow markers."""
    lines, points = fixed(scenario.frame), best(scenario.frame)
    shown = [pair for pair in BASELINES if lines[f"speedup_vs_{pair[0]}"].notna().any()]
    if not shown:
        return None
    figure, axes = panels(len(shown), width=5.4, height=4.4)
    for axis, (baseline, words) in zip(axes, shown, strict=False):
        _panel(axis, lines, points, baseline)
        axis.set_title(f"Against {words}")
        axis.set_xlabel(f"batch size ({'cap on ' if scenario.rate else ''}requests in flight)")
        axis.set_ylabel("speed-up (ratio of decode tokens/s per user)")
        powers_of_two(axis, scenario.batch_sizes)
        axis.set_ylim(bottom=0)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    axes[0].plot([], [], "o", color="#777777", markerfacecolor="white", label="hindsight-best shape")
    if any(text.get_gid() == CROSSOVER for axis in axes for text in axis.texts):
        axes[0].plot([], [], "|", color="#777777", markersize=14, markeredgewidth=2, label="crossover, interpolated")
    shared_legend(figure, axes, ncols=4)
    title = "Speed-up against batch size"
    methods = sorted({str(method) for name, _ in shown for method in lines[f"speedup_vs_{name}_method"].dropna()})
    over = "; ".join(methods) or "none"
    notes = f"bars: 95 %, {over} · lines: one shape for all batch sizes · markers set apart for sight"
    headline(figure, title, f"{scenario.title} · {prompts(lines)} · {notes}")
    caption = (
        "Ratio of decode tokens/s per user, paired by prompt, at each batch size. Filled markers and lines: the one "
        "shape per strategy with the best geometric mean over batch sizes. Hollow markers: the shape that was best "
        "at that batch size alone (hindsight-best, an optimistic choice). Below the line at 1 the baseline is "
        "faster. A tall tick with a number is the batch size at which a line crosses it, interpolated between the "
        "measured ones. No bar where two blocks are too few for one."
    )
    return Drawing("speedup_vs_batch_size", "speedup", title, caption, figure)


def _panel(axis: Axes, lines: pd.DataFrame, points: pd.DataFrame, baseline: str) -> None:
    name = f"speedup_vs_{baseline}"
    axis.axhline(
        1.0, color=colour(baseline), linewidth=1.4, linestyle=line(baseline), zorder=1, label=f"baseline: {baseline}"
    )
    strategies = ordered_strategies(lines)
    for index, strategy in enumerate(strategies):
        style: dict[str, Any] = {"color": colour(strategy), "marker": marker(strategy)}
        solid: dict[str, Any] = {**style, "linestyle": line(strategy), "capsize": 3, "elinewidth": 1.1}
        apart = 1 + 0.05 * (index - (len(strategies) - 1) / 2)
        mine = lines[(lines["strategy"] == strategy) & lines[name].notna()]
        if not (mine["point_id"] == mine[f"{baseline}_point_id"]).all():
            _points(axis, mine, name, apart, label=str(mine["label"].iloc[0]), **solid)
            _crossings(axis, mine, name, strategy, apart, index)
        other = points[(points["strategy"] == strategy) & points[name].notna()]
        other = other[~other["point_id"].isin(mine["point_id"])]
        _points(axis, other, name, apart * 1.22, capsize=2, elinewidth=0.8, ls="none", mfc="white", **style)


def _points(axis: Axes, frame: pd.DataFrame, name: str, apart: float, **style: Any) -> None:
    if not frame.empty:
        axis.errorbar(floats(frame["batch_size"]) * apart, floats(frame[name]), yerr=bars(frame, name), **style)


def _crossings(axis: Axes, frame: pd.DataFrame, name: str, strategy: str, apart: float, index: int) -> None:
    """Marks where a line crosses 1, on the line as it is drawn, with the true batch size; lower for later lines."""
    frame = frame[frame[name] > 0]
    for crossover in crossovers([int(size) for size in frame["batch_size"]], floats(frame[name])):
        at = crossover.at
        axis.plot([at * apart], [1.0], marker="|", markersize=14, markeredgewidth=2, color=colour(strategy))
        place: dict[str, Any] = {
            "xytext": (0, -17 - 8 * index),
            "textcoords": "offset points",
            "ha": "center",
            "fontsize": 8,
        }
        axis.annotate(f"{at:.2g}", (at * apart, 1.0), color=colour(strategy), gid=CROSSOVER, **place)
