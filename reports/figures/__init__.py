"""Figures of a run: each reads the results alone and is saved as PNG with its title, axes, units and n."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

from reports.aggregate import Analysis
from reports.choose import Scenario
from reports.figures import depth, heatmaps, nodes, product, speedup, stages
from reports.figures.style import STYLE, Drawing


@dataclass(frozen=True)
class SavedFigure:
    """A drawn figure: where it lies, its scenario and section of the report, its title and its caption."""

    path: Path
    scenario: str
    section: str
    title: str
    caption: str


def draw_scenario(
    scenario: Scenario, analysis: Analysis, dropped: list[dict[str, Any]], folder: Path
) -> list[SavedFigure]:
    """Draw and save every figure of one scenario that its points allow; a figure without data is left out."""
    saved = []
    with mpl.rc_context(STYLE):
        for drawing in _drawings(scenario, analysis, dropped):
            prefix = f"{scenario.name}-" if scenario.name else ""
            path = folder / f"{_slug(prefix)}{drawing.name}.png"
            drawing.figure.savefig(path, dpi=144, metadata={"Software": None})
            caption = drawing.caption + scenario.caveat
            saved.append(SavedFigure(path, scenario.name, drawing.section, drawing.title, caption))
    return saved


def _drawings(scenario: Scenario, analysis: Analysis, dropped: list[dict[str, Any]]) -> list[Drawing]:
    drawings = [
        speedup.against_batch_size(scenario),
        product.acceptance_against_step_time(scenario),
        stages.round_time_split(scenario),
        nodes.acceptance_against_nodes(scenario),
        depth.acceptance_by_depth(scenario, analysis),
        *heatmaps.width_by_depth(scenario, dropped),
    ]
    return [drawing for drawing in drawings if drawing is not None]


def _slug(text: str) -> str:
    return "".join(character if character.isalnum() or character in "-_." else "_" for character in text)
