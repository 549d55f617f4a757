"""One look for all figures: colour-blind safe colours (Okabe and Ito), a marker a strategy, print-sized text."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.frames import records
from reports.sections.text import too_wide

COLOURS = {"autoregressive": "#444444", "dflash": "#0072B2", "eagle": "#E69F00", "ddtree": "#009E73"}
MARKERS = {"autoregressive": "X", "dflash": "s", "eagle": "^", "ddtree": "o"}
LINES = {"autoregressive": ":", "dflash": "--", "eagle": "-.", "ddtree": "-"}  # apart in grey print too
OTHER_COLOUR, OTHER_MARKER, OTHER_LINE = "#CC79A7", "D", (0, (1, 3))

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "svg.hashsalt": "ddbench",
}


@dataclass(frozen=True)
class Drawing:
    """A figure with its file name (no suffix), the section of the report it belongs to, its title and caption."""

    name: str
    section: str
    title: str
    caption: str
    figure: Figure


def colour(strategy: str) -> str:
    return COLOURS.get(strategy, OTHER_COLOUR)


def marker(strategy: str) -> str:
    return MARKERS.get(strategy, OTHER_MARKER)


def line(strategy: str) -> Any:
    """Matplotlib's line style of a strategy."""
    return LINES.get(strategy, OTHER_LINE)


def panels(
    columns: int, rows: int = 1, width: float = 4.4, height: float = 3.7, **shared: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of panels, row by row; sizes in inches a panel, with room for the head line."""
    figure = Figure(figsize=(max(width * columns, 6.8), height * rows + 0.95), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    return figure, list(axes.flat)


def headline(figure: Figure, title: str, subtitle: str) -> None:
    """Title in bold and, below it, what was measured and n, in small grey, broken to the figure's width."""
    width, height = figure.get_size_inches()
    plain = subtitle.replace("$", r"\$")  # a name is no formula
    lines = textwrap.wrap(plain, int(width * 14))
    figure.text(0.08 / width, 1 - 0.08 / height, title, fontsize=13, fontweight="bold", ha="left", va="top")
    text: dict[str, Any] = {"fontsize": 8.5, "color": "#555555", "ha": "left", "va": "top", "linespacing": 1.25}
    figure.text(0.08 / width, 1 - 0.36 / height, "\n".join(lines), **text)
    reserved = (0.42 + 0.17 * len(lines)) / height
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - reserved))  # type: ignore[union-attr, call-arg]


def shared_legend(figure: Figure, axes: list[Axes], **options: Any) -> None:
    """One legend for all panels, below them, each label once."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", **options)


def prompts(frame: pd.DataFrame) -> str:
    """``n = 12 prompts``, or the range where the points differ."""
    counts = frame["prompts"].dropna()
    if counts.empty:
        return "n = 0 prompts"
    low, high = int(counts.min()), int(counts.max())
    return f"n = {low} prompts" if low == high else f"n = {low} to {high} prompts"


def floats(values: pd.Series[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A nullable column as floats with NaN, for drawing alone."""
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))


def bars(frame: pd.DataFrame, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[2, points] distances from a value to its interval, 0 where there is none, or none that the page would tell."""
    value, low, high = (floats(frame[f"{name}{end}"]) for end in ("", "_low", "_high"))
    distances = np.nan_to_num(np.stack([value - low, high - value]), nan=0.0)
    distances[:, [too_wide(row, name) for row in records(frame)]] = 0.0
    return np.asarray(np.maximum(distances, 0.0))


def powers_of_two(axes: Axes, values: list[int]) -> None:
    """A base-2 logarithmic x axis with ticks at the values that were measured."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [str(value) for value in values])
    axes.minorticks_off()
    if len(values) == 1:
        axes.set_xlim(values[0] / 2, values[0] * 2)
