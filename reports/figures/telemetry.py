"""The telemetry strip: clocks, temperature, power and load of each cell, in the order in which the cells ran."""

from __future__ import annotations

import pandas as pd

from ddbench.records import STRATEGIES
from reports.figures.style import Drawing, colour, floats, headline, marker, panels, shared_legend
from reports.frames import Stored
from reports.telemetry import by_cell

PANELS = (
    ("gpu_sm_clock_mhz", "SM clock\n(MHz)"),
    ("gpu_mem_clock_mhz", "memory clock\n(MHz)"),
    ("gpu_temperature_c", "temperature\n(°C)"),
    ("gpu_power_w", "power\n(W)"),
    ("cpu_percent", "CPU load\n(% of a core)"),
    ("process_rss_gib", "memory\n(GiB)"),
)
SHORT = 3.0  # minutes; a shorter run is shown in seconds
LIMIT = "gpu_power_limit_w"


def strip(stored: Stored) -> Drawing | None:
    """One panel a quantity that was sampled, one mark a cell: its median, the bar from lowest to highest sample."""
    frame = by_cell(stored)
    shown = [pair for pair in PANELS if (frame["name"] == pair[0]).any()]
    if not shown:
        return None
    unit, factor = ("minutes", 1.0) if float(frame["minutes"].max()) > SHORT else ("seconds", 60.0)
    figure, axes = panels(1, len(shown), width=9.0, height=1.5, sharex=True)
    for axis, (name, label) in zip(axes, shown, strict=True):
        here = frame[frame["name"] == name]
        for strategy in _ordered(here):
            mine = here[here["strategy"] == strategy]
            middle = floats(mine["median"].astype("Float64"))
            low, high = (floats(mine[end].astype("Float64")) for end in ("low", "high"))
            axis.errorbar(
                mine["minutes"].astype(float) * factor,
                middle,
                yerr=[middle - low, high - middle],
                color=colour(strategy),
                marker=marker(strategy),
                linestyle="none",
                elinewidth=0.9,
                markersize=4,
                label=strategy,
            )
        limit = frame.loc[frame["name"] == LIMIT, "median"]
        if name == "gpu_power_w" and len(limit):
            axis.axhline(float(limit.median()), color="#222222", linestyle="--", linewidth=1, label="power limit")
        axis.set_ylabel(label, fontsize=8.5)
    axes[-1].set_xlabel(f"start of the cell ({unit} after the first)")
    shared_legend(figure, axes, ncols=5)
    title = "Telemetry"
    cells = frame["cell_id"].nunique()
    headline(figure, title, f"n = {cells} cells · marks: median of a cell's samples · bars: lowest to highest sample")
    caption = (
        "One mark a cell in the order of time. Arms that ran at other clocks, temperatures or loads than their "
        "baseline were not measured alike."
    )
    return Drawing("telemetry", "telemetry", title, caption, figure)


def _ordered(frame: pd.DataFrame) -> list[str]:
    present = {str(name) for name in frame["strategy"].unique()}
    return [name for name in STRATEGIES if name in present] + sorted(present - set(STRATEGIES))
