"""Acceptance length against round time: the two factors of tokens/s in one picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from reports.choose import Scenario, best, ordered_strategies, usable
from reports.figures.style import Drawing, colour, floats, headline, marker, panels, prompts, shared_legend


def acceptance_against_step_time(scenario: Scenario) -> Drawing | None:
    """A panel a batch size; every point a shape; grey lines join shapes of equal tokens/s."""
    frame = usable(scenario.frame)
    frame = frame[frame["acceptance_length"].notna() & frame["step_ms"].notna()]
    if frame.empty:
        return None
    sizes = [size for size in scenario.batch_sizes if (frame["batch_size"] == size).any()]
    columns = min(len(sizes), 3)
    figure, axes = panels(columns, -(-len(sizes) // columns), width=4.8, height=4.0)
    winners = set(best(frame)["point_id"])
    for axis, size in zip(axes, sizes, strict=False):
        here = frame[frame["batch_size"] == size]
        for strategy in ordered_strategies(frame):
            mine = here[here["strategy"] == strategy]
            top = mine[mine["point_id"].isin(winners)]
            axis.scatter(
                floats(mine["step_ms"]),
                floats(mine["acceptance_length"]),
                s=26,
                color=colour(strategy),
                marker=marker(strategy),
                alpha=0.75,
                linewidths=0,
                label=strategy,
            )
            axis.scatter(
                floats(top["step_ms"]),
                floats(top["acceptance_length"]),
                s=90,
                facecolors="none",
                edgecolors=colour(strategy),
                marker=marker(strategy),
                linewidths=1.6,
            )
        baseline = usable(scenario.at(size))
        baseline = baseline[baseline["strategy"] == "autoregressive"]
        axis.set_xlim(0, float(here["step_ms"].max()) * 1.12)
        axis.set_ylim(0, float(here["acceptance_length"].max()) * 1.15)
        _iso_lines(axis, floats(here["tokens_per_s_per_user"]))
        if baseline["step_ms"].notna().any():
            step = float(baseline["step_ms"].dropna().iloc[0])
            axis.scatter(
                [step], [1.0], s=60, color=colour("autoregressive"), marker="X", label="autoregressive (1 token)"
            )
        axis.set_title(f"Batch size {size}")
        axis.set_xlabel("decode time per round (ms)")
        axis.set_ylabel("acceptance length (tokens per round)")
    for axis in axes[len(sizes) :]:
        axis.set_visible(False)
    shared_legend(figure, axes, ncols=4)
    title = "Acceptance length against round time"
    notes = "grey lines: equal decode tokens/s per user, as numbered · ringed: hindsight-best of a strategy"
    headline(figure, title, f"{scenario.title} · {prompts(frame)} · {notes}")
    caption = (
        "tokens/s = acceptance length / round time. A shape on a steeper grey line is faster. A tree that lies right "
        "of the chain pays with time per round; it wins only if it lies higher by a larger factor."
    )
    return Drawing("acceptance_vs_step_time", "product", title, caption, figure)


def _iso_lines(axis: Axes, rates: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    """Lines of equal tokens/s from the origin, labelled at the frame's edge, at round numbers within the data."""
    low, high = float(np.nanmin(rates)), float(np.nanmax(rates))
    right, top = axis.get_xlim()[1], axis.get_ylim()[1]
    for rate in np.unique([_round_number(value) for value in np.geomspace(low * 0.8, high * 1.1, 5)]):
        slope = rate / 1000.0
        end = min(right, top / slope)
        axis.plot([0, end], [0, end * slope], color="#BBBBBB", linewidth=0.9, zorder=0)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        place: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "fontsize": 7.5,
            "color": "#777777",
            "zorder": 0.5,
            "bbox": box,
        }
        axis.text(0.95 * end, 0.95 * end * slope, f"{rate:g}", **place)


def _round_number(value: float) -> float:
    """The nearest of 1, 1.5, 2, 3, 5, 7 times a power of ten."""
    scale = 10.0 ** np.floor(np.log10(value))
    steps = np.asarray([1, 1.5, 2, 3, 5, 7, 10])
    return float(scale * steps[np.argmin(np.abs(np.log(steps * scale / value)))])
