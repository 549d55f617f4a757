"""The page: report.md, from the results and the stored files. Answer, doubts, results, figures, guards, methods."""

from __future__ import annotations

from collections.abc import Sequence

from reports.aggregate import Analysis
from reports.choose import Scenario, labelled, scenarios
from reports.figures import SavedFigure
from reports.frames import Stored
from reports.sections import (
    aa,
    answer,
    asked,
    banners,
    categories,
    checkpoints,
    degeneracy,
    drift,
    front,
    headline,
    ledger,
    method,
    paper,
    provenance,
    refused,
    replayed,
    selection,
    status,
    tables,
    telemetry,
)
from reports.sections.text import literal

BUILT = "Report built: "


def render(stored: Stored, analysis: Analysis, figures: list[SavedFigure], built: str) -> str:
    """The whole page. ``built`` is the time of building; its line is the only one that differs between two builds."""
    run = stored.run.resolve()
    found = scenarios(analysis.frame)
    lines = [f"# ddbench report: {run.parent.name}/{run.name}", "", *banners.lines(stored)]
    lines += [f"{BUILT}{built}", "", *answer.counts(stored, analysis), ""]
    lines += headline.section(stored, analysis, found)
    lines += front.section(stored, analysis)
    lines += aa.section(stored, analysis)
    lines += checkpoints.section(stored, analysis, _pictures(figures, "checkpoints"))
    for scenario in found:
        own = _scenario(scenario, analysis, figures, asked.strategies(stored))
        lines += own if len(found) == 1 else [f"## {literal(scenario.title)}", "", *map(_nested, own)]
    lines += _guards(stored, analysis, figures)
    lines += provenance.section(stored)
    lines += method.section(stored)
    return "\n".join(lines).rstrip() + "\n"


def _nested(line: str) -> str:
    """A heading one level deeper, of a scenario that is one of several; any other line as it is."""
    return f"#{line}" if line.startswith("##") else line


def _scenario(scenario: Scenario, analysis: Analysis, figures: list[SavedFigure], planned: Sequence[str]) -> list[str]:
    """The sections of one scenario; of a fixed length none that ranks. ``planned``: strategies of the run."""
    mine = [figure for figure in figures if figure.scenario == scenario.name]
    if replayed.only(scenario):
        lines = replayed.section(scenario)
    else:
        lines = ["## Results", "", *answer.statements(scenario, analysis, planned), ""]
    if not scenario.fixed_length and not replayed.only(scenario):
        lines += ["## Best configuration by batch size", "", *tables.best_by_batch(scenario), ""]
        lines += selection.section(scenario, analysis)
        lines += _pictures(mine, "speedup")
        lines += ["## Won or lost by acceptance or by cost", "", *tables.product(scenario), ""]
    lines += _pictures(mine, "product")
    if any(figure.section in ("acceptance", "shape") for figure in mine):
        lines += ["## Acceptance and shape", "", *_pictures(mine, "acceptance"), *_maps(mine)]
    results = ["## All results", "", *tables.all_results(scenario), ""]
    if scenario.fixed_length:
        return lines + results
    lines += [*categories.section(scenario, analysis), *results]
    lines += ["## What each tool would have printed", "", *tables.conventions(scenario, analysis), ""]
    return lines + paper.section(scenario, analysis)


def _guards(stored: Stored, analysis: Analysis, figures: list[SavedFigure]) -> list[str]:
    """What speaks against the numbers, of the whole run."""
    frame = labelled(analysis.frame)
    lines = status.section(stored, analysis)
    lines += refused.section(frame, analysis)
    lines += ledger.section(frame, analysis)
    lines += degeneracy.section(frame)
    lines += drift.section(frame, analysis)
    return lines + telemetry.section(stored, _pictures(figures, "telemetry"))


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
    titles = ("Acceptance length", "Decode speed")[: max(map(len, rows.values()))]
    lines = [f"| {' | '.join(titles)} |", f"|{':---:|' * len(titles)}"]
    for pair in rows.values():
        cells = [f"![{figure.title}](figures/{figure.path.name})" for figure in pair]
        lines.append(f"| {' | '.join(cells)} |")
    captions = dict.fromkeys(figure.caption for figure in maps)
    return [*lines, "", *(f"*{caption}*" for caption in captions), ""]
