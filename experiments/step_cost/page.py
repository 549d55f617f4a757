"""The page of a cost file: setup, points, fit, residuals, stages, and a figure; from ``cost.json`` alone."""

from __future__ import annotations

from pathlib import Path

from reports.cost import cost_page, draw_cost
from reports.write import write_page as write_markdown


def write_page(folder: Path, cost: Path) -> Path:
    """Writes ``report.md`` and ``figures/step_cost.png`` beside the cost file; where the page is."""
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    draw_cost(cost, figures / "step_cost.png")
    page = folder / "report.md"
    write_markdown(page, cost_page(cost, "figures/step_cost.png"))
    return page
