"""A sanity check where models and data are those of a paper: is the acceptance length what was published?"""

from __future__ import annotations

from reports.aggregate import Analysis
from reports.choose import Scenario, usable
from reports.frames import records
from reports.published import expected
from reports.sections.text import number, table, whole

MEASURED = "dflash_scripts"  # the papers' own way of averaging


def section(scenario: Scenario, analysis: Analysis) -> list[str]:
    """Nothing where nothing published matches."""
    values = {row["point_id"]: row[MEASURED] for row in records(analysis.acceptance_variants)}
    rows = []
    for row in records(usable(scenario.frame)):
        wanted, measured = expected(row), values.get(row["point_id"])
        if wanted is None or measured is None:
            continue
        low, high = wanted.bounds
        rows.append(
            {
                "Arm": row["label"],
                "Batch size": whole(row["batch_size"]),
                "Published": _span(wanted.low, wanted.high),
                "Expected": _span(low, high),
                "Measured": number(measured),
                "": wanted.verdict(float(measured)),
                "n (prompts)": whole(row["prompts"]),
                "Source": ", ".join(wanted.sources),
            }
        )
    if not rows:
        return []
    return [
        "## Against published acceptance lengths",
        "",
        "Same target, drafter, template and data as in the papers, averaged as they do (mean over requests of the "
        "mean over rounds). For a tree the published range runs from the chain to the best tree of any budget; the "
        "expected range is wider by 10 % at either end. Outside means: look for a wrong template, a wrong drafter or "
        "a wrong count first. The papers' prompts are up to 2,048 tokens long in the answer; shorter limits shift "
        "the figure a little.",
        "",
        *table(rows),
        "",
    ]


def _span(low: float, high: float) -> str:
    return number(low) if low == high else f"{number(low)} to {number(high)}"
