"""The page: report.md, from the results and the stored files."""

from __future__ import annotations

from reports.aggregate import Analysis
from reports.choose import Scenario, scenarios
from reports.figures import SavedFigure
from reports.frames import Stored
from reports.sections import answer, front, method, provenance, status, tables

TINY = (
    "> **This report demonstrates the method and says nothing about your GPU.** It was made with the tiny models that "
    "come with ddbench."
)
SYNTHETIC = "> **SYNTHETIC DATA.** The numbers below were made up to test the report; nothing was measured."


def render(stored: Stored, analysis: Analysis, figures: list[SavedFigure], built: str) -> str:
    """The whole page. ``built`` is the time of building; its line is the only one that differs between two builds."""
    run = stored.run.resolve()
    lines = [f"# ddbench report: {run.parent.name}/{run.name}", ""]
    if stored.config.get("synthetic") or stored.environment.get("synthetic"):
        lines += [SYNTHETIC, ""]
    if any(str(model).startswith("tiny") for model in stored.cells["model"].dropna()):
        lines += [TINY, ""]
    lines += [f"Report built: {built}", "", *answer.counts(stored, analysis), ""]
    lines += front.notes(stored, analysis)
    found = scenarios(analysis.frame)
    for scenario in found:
        lines += _scenario(scenario, analysis, figures, alone=len(found) == 1)
    lines += provenance.section(stored)
    lines += status.section(stored, analysis)
    lines += method.section(stored)
    return "\n".join(lines).rstrip() + "\n"


def _scenario(scenario: Scenario, analysis: Analysis, figures: list[SavedFigure], alone: bool) -> list[str]:
    mine = [figure for figure in figures if figure.scenario == scenario.name]
    lines = [] if alone else [f"# {scenario.title}", ""]
    lines += ["## The answer", "", *answer.statements(scenario, analysis), ""]
    lines += ["## Best configuration by batch size", "", *tables.best_by_batch(scenario), ""]
    lines += _pictures(mine, "speedup")
    lines += ["## Won or lost by acceptance or by cost", "", *tables.product(scenario), ""]
    lines += _pictures(mine, "product")
    if any(figure.section in ("acceptance", "shape") for figure in mine):
        lines += ["## Acceptance and shape", "", *_pictures(mine, "acceptance"), *_maps(mine)]
    lines += ["## All results", "", *tables.all_results(scenario), ""]
    return [*lines, "## What other tools would have printed", "", *tables.conventions(scenario, analysis), ""]


def _pictures(figures: list[SavedFigure], section: str) -> list[str]:
    lines = []
    for figure in figures:
        if figure.section == section:
            lines += [f"![{figure.title}](figures/{figure.path.name})", "", f"*{figure.caption}*", ""]
    return lines


def _maps(figures: list[SavedFigure]) -> list[str]:
    """Heat maps two abreast: acceptance and speed of one strategy and batch size; one caption a strategy."""
    maps = [figure for figure in figures if figure.section == "shape"]
    rows: dict[str, list[SavedFigure]] = {}
    for figure in maps:
        rows.setdefault(figure.path.stem.split("_heatmap_")[1], []).append(figure)
    if not rows:
        return []
    lines = ["| Acceptance length | Decode speed |", "|:---:|:---:|"]
    for pair in rows.values():
        cells = [f"![{figure.title}](figures/{figure.path.name})" for figure in pair]
        lines.append(f"| {' | '.join(cells)} |")
    captions = dict.fromkeys(figure.caption for figure in maps)
    return [*lines, "", *(f"*{caption}*" for caption in captions), ""]
