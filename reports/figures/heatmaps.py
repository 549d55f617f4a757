"""Width x depth heat maps, one figure a strategy, metric and batch size; one panel a node budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from reports.choose import Scenario, number
from reports.figures.style import Drawing, headline, panels, prompts
from reports.frames import records


@dataclass(frozen=True)
class Metric:
    name: str
    file: str
    title: str
    unit: str
    digits: str


METRICS = (
    Metric("acceptance_length", "acceptance", "Acceptance length", "tokens per round", ".2f"),
    Metric("tokens_per_s_per_user", "tokens_per_s", "Decode speed", "tokens/s per user", ".0f"),
)
# EAGLE's width is the drafter's top-k, children and beam at once: never one map with DDTree's.
AXES = {
    "ddtree": ("width (most children of a node)", "depth (longest path, tokens)"),
    "eagle": ("top-k (children and beam)", "depth (drafter steps)"),
}


def width_by_depth(scenario: Scenario, dropped: list[dict[str, Any]]) -> list[Drawing]:
    """Maps of every strategy that has two or more widths or depths."""
    drawings = []
    for strategy in AXES:
        frame = scenario.frame[(scenario.frame["strategy"] == strategy) & scenario.frame["policy"].isna()]
        measured = frame[frame["acceptance_length"].notna()]
        shapes = measured[["width", "depth"]].drop_duplicates()
        if len(shapes) < 2:
            continue
        for metric in METRICS:
            for size in scenario.batch_sizes:
                here = measured[measured["batch_size"] == size]
                if here[metric.name].notna().any():  # a replayed point has no speed
                    shared = measured if metric.name == "acceptance_length" else here
                    drawings.append(_map(scenario, strategy, metric, size, here, frame, shared, dropped))
    return drawings


def _map(
    scenario: Scenario,
    strategy: str,
    metric: Metric,
    size: int,
    here: pd.DataFrame,
    frame: pd.DataFrame,
    shared: pd.DataFrame,
    dropped: list[dict[str, Any]],
) -> Drawing:
    budgets = _sorted(frame["nodes"])
    widths, depths = _sorted(frame["width"]), _sorted(frame["depth"])
    columns = min(len(budgets), 4)
    rows = -(-len(budgets) // columns)
    figure, axes = panels(
        columns, rows, width=max(2.0, 0.75 * len(depths) + 1.1), height=max(2.0, 0.55 * len(widths) + 1.0)
    )
    values = shared[metric.name].dropna().astype(float)
    scale = Normalize(float(values.min()), float(max(values.max(), values.min() + 1e-9)))
    winner = here.sort_values(metric.name, ascending=False, kind="stable").iloc[0]
    image = None
    for axis, budget in zip(axes, budgets, strict=False):
        table, marks = _table(
            here, frame[frame["batch_size"] == size], dropped, strategy, widths, depths, budget, metric
        )
        image = _panel(axis, table, marks, widths, depths, scale, metric)
        axis.set_title(f"{number(budget)} nodes")
        if _same(winner["nodes"], budget):
            corner = (_index(depths, winner["depth"]) - 0.5, _index(widths, winner["width"]) - 0.5)
            axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#D55E00", linewidth=2.6, zorder=5))
    for index, axis in enumerate(axes):
        axis.set_visible(index < len(budgets))
        if index % columns == 0:
            axis.set_ylabel(AXES[strategy][0])
        axis.set_xlabel(AXES[strategy][1] if index >= len(budgets) - columns else "")
    assert image is not None
    _colour_bar(figure, axes, image, metric)
    title = f"{metric.title} of {strategy} over width and depth, batch size {size}"
    notes = f"{metric.unit} · frame: highest · hatched: not measured"
    headline(figure, title, f"{scenario.title} · {prompts(here)} · {notes}")
    caption = (
        "One panel a node budget; the highest value is framed (hindsight). Hatched cells were not measured: x "
        "impossible (dropped), u unsupported, f failed. EAGLE's width is its drafter's top-k, children and beam at "
        "once."
    )
    return Drawing(f"{metric.file}_heatmap_{strategy}_b{size}", "shape", title, caption, figure)


def _table(
    here: pd.DataFrame,
    every: pd.DataFrame,
    dropped: list[dict[str, Any]],
    strategy: str,
    widths: list[Any],
    depths: list[Any],
    budget: Any,
    metric: Metric,
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], dict[tuple[int, int], str]]:
    """Values [widths, depths] with NaN where there is none, and a letter that says why."""
    table = np.full((len(widths), len(depths)), np.nan)
    marks: dict[tuple[int, int], str] = {}
    for point in dropped:
        if point.get("strategy") == strategy and _same(point.get("nodes"), budget):
            place = _index(widths, point.get("width")), _index(depths, point.get("depth"))
            if min(place) >= 0:
                marks[place] = "x"
    for row in records(every):
        if _same(row["nodes"], budget) and row["status"] in ("unsupported", "failed"):
            marks[_index(widths, row["width"]), _index(depths, row["depth"])] = str(row["status"])[0]
    for row in records(here):
        if _same(row["nodes"], budget) and not pd.isna(row[metric.name]):
            i, j = _index(widths, row["width"]), _index(depths, row["depth"])
            table[i, j] = np.nanmax([table[i, j], float(row[metric.name])])
    return table, marks


def _panel(
    axis: Axes,
    table: np.ndarray[Any, np.dtype[np.float64]],
    marks: dict[tuple[int, int], str],
    widths: list[Any],
    depths: list[Any],
    scale: Normalize,
    metric: Metric,
) -> AxesImage:
    image = axis.imshow(table, cmap="viridis", norm=scale, origin="lower", aspect="auto")
    axis.grid(visible=False)
    for i, j in np.ndindex(table.shape):
        if np.isnan(table[i, j]):
            axis.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="#EEEEEE", edgecolor="#BBBBBB", hatch="///"))
            axis.text(j, i, marks.get((i, j), ""), ha="center", va="center", fontweight="bold", color="#555555")
        else:
            bright = scale(table[i, j]) > 0.6
            text = format(table[i, j], metric.digits)
            axis.text(j, i, text, ha="center", va="center", fontsize=9, color="black" if bright else "white")
    axis.set_xticks(range(len(depths)), [number(depth) for depth in depths])
    axis.set_yticks(range(len(widths)), [number(width) for width in widths])
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    return image


def _colour_bar(figure: Figure, axes: list[Axes], image: AxesImage, metric: Metric) -> None:
    bar = figure.colorbar(image, ax=axes, label=metric.unit, shrink=0.9, pad=0.02)
    bar.outline.set_visible(False)


def _sorted(column: pd.Series[Any]) -> list[Any]:
    present = sorted(int(value) for value in column.dropna().unique())
    return [*present, None] if column.isna().any() else present


def _same(value: Any, other: Any) -> bool:
    missing = value is None or value is pd.NA
    return other is None if missing else other is not None and int(value) == int(other)


def _index(values: list[Any], value: Any) -> int:
    return next((i for i, other in enumerate(values) if _same(value, other)), -1)
