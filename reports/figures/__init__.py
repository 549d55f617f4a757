"""Figures of a run: each reads the results alone and is saved as PNG with its title, axes, units and n."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from reports.aggregate import Analysis
from reports.choose import Scenario
from reports.figures import checkpoints, depth, heatmaps, nodes, pareto, product, speedup, stages, telemetry
from reports.figures.style import STYLE, Drawing
from reports.frames import Stored
from reports.write import slug


@dataclass(frozen=True)
class SavedFigure:
    """A drawn figure: where it lies, its scenario and section of the report, its title and its caption."""

    path: Path
    scenario: str
    section: str
    title: str
    caption: str


def draw_run(stored: Stored, analysis: Analysis, folder: Path) -> list[SavedFigure]:
    """Draw and save the figures of the run as a whole."""
    with mpl.rc_context(STYLE):
        drawings = [checkpoints.by_checkpoint(stored, analysis), telemetry.strip(stored)]
        return [_saved(drawing, folder, "", "") for drawing in drawings if drawing is not None]


def draw_scenario(
    scenario: Scenario, analysis: Analysis, dropped: list[dict[str, Any]], folder: Path
) -> list[SavedFigure]:
    """Draw and save every figure of one scenario that its points allow; a figure without data is left out."""
    with mpl.rc_context(STYLE):
        drawings = _drawings(scenario, analysis, dropped)
        return [_saved(drawing, folder, scenario.name, scenario.caveat) for drawing in drawings]


def _saved(drawing: Drawing, folder: Path, scenario: str, caveat: str) -> SavedFigure:
    prefix = f"{scenario}-" if scenario else ""
    path = folder / f"{slug(prefix)}{drawing.name}.png"
    drawing.figure.savefig(path, dpi=144, metadata={"Software": None})
    return SavedFigure(path, scenario, drawing.section, drawing.title, drawing.caption + caveat)


def _drawings(scenario: Scenario, analysis: Analysis, dropped: list[dict[str, Any]]) -> list[Drawing]:
    ranking = [speedup.against_batch_size, pareto.user_against_machine]
    drawings = [
        *(draw(scenario) for draw in ranking if not scenario.fixed_length),
        product.acceptance_against_step_time(scenario),
        stages.round_time_split(scenario),
        nodes.acceptance_against_nodes(scenario),
        depth.acceptance_by_depth(scenario, analysis),
        *heatmaps.width_by_depth(scenario, dropped),
    ]
    return [drawing for drawing in drawings if drawing is not None]
