"""Figures of a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from reports.figures.style import colour, headline, line, marker, panels, powers_of_two, shared_legend

MARK = "PREDICTED"


def speed(frame: pd.DataFrame, told: Mapping[str, Any]) -> Figure:
    """Speed-up over autoregressive decoding against batch size: a line a width of the verify pass."""
    shown = frame[frame["speedup_vs_autoregressive"].notna() & (frame["temperature"] == frame["temperature"].min())]
    figure, axes = panels(1, width=8.5, height=4.6)
    axis = axes[0]
    sizes = sorted({int(size) for size in frame["batch_size"]})
    for strategy in ("dflash", "ddtree"):
        mine = shown[shown["strategy"] == strategy]
        for place, (width, group) in enumerate(mine.groupby("verify_width")):
            tops = group.groupby("batch_size")["speedup_vs_autoregressive"].max()
            shade = colour(strategy) if strategy == "dflash" else f"C{place}"
            name = f"{strategy}, verify width {width}"
            axis.plot(list(tops.index), list(tops), line(strategy), marker=marker(strategy), color=shade, label=name)
    axis.axhline(1.0, color="#444444", lw=1, ls=":")
    axis.set_xlabel("batch size (requests in flight)")
    axis.set_ylabel(f"{MARK} speed-up over autoregressive")
    powers_of_two(axis, sizes)
    axis.set_ylim(bottom=0)
    axis.text(
        0.5, 0.5, MARK, transform=axis.transAxes, fontsize=44, color="#EEEEEE", ha="center", va="center", zorder=0
    )
    shared_legend(figure, axes, ncols=3)
    setup = told["cost"]["fingerprint"]
    note = (
        f"{told['model']} · {setup.get('device')} · {setup.get('engine_version')} · best width and depth of each line"
    )
    headline(figure, f"{MARK} speed-up against batch size", note)
    return figure


def against(told: Mapping[str, Any]) -> Figure:
    """Predicted against measured tokens/s per user, a mark a point."""
    found = told["check"]
    figure, axes = panels(1, width=6.8, height=5.0)
    axis = axes[0]
    points: Sequence[Mapping[str, Any]] = found["points"]
    for strategy in ("autoregressive", "dflash", "ddtree"):
        mine = [each for each in points if each["strategy"] == strategy]
        if mine:
            xs, ys = [each["measured"] for each in mine], [each["predicted"] for each in mine]
            axis.plot(xs, ys, marker(strategy), color=colour(strategy), ls="none", label=strategy)
    ends = [value for each in points for value in (each["measured"], each["predicted"])]
    low, high = 0.9 * min(ends), 1.1 * max(ends)
    axis.plot([low, high], [low, high], color="#444444", lw=1)
    axis.fill_between([low, high], [0.95 * low, 0.95 * high], [1.05 * low, 1.05 * high], color="#EEEEEE", label="5 %")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("measured tokens/s per user")
    axis.set_ylabel(f"{MARK} tokens/s per user")
    shared_legend(figure, axes, ncols=4)
    error = found["summary"]["loop_error"]
    note = f"{told['model']} · median error {100 * error['median']:.1f} %, worst {100 * error['worst']:.1f} %"
    headline(figure, f"{MARK} against measured", f"{note} · n = {error['n']} points")
    return figure
