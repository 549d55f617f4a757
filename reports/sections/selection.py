"""The best shape chosen on one half of the prompts and reported on the other, beside the hindsight-best."""

from __future__ import annotations

from typing import Any

from reports.aggregate import Analysis
from reports.choose import Scenario, ordered_strategies
from reports.frames import records
from reports.sections.text import interval, missing, number, table, whole

Row = dict[str, Any]


def section(scenario: Scenario, analysis: Analysis) -> list[str]:
    frame = analysis.selection
    frame = frame[frame["scenario"].isin(scenario.frame["scenario"])]
    if frame.empty:
        return []
    order = {name: rank for rank, name in enumerate(ordered_strategies(frame))}
    rows = sorted(records(frame), key=lambda row: (row["batch_size"], order[row["strategy"]]))
    notes = dict.fromkeys(str(row["note"]) for row in rows if not missing(row["note"]))
    heading = ["## Chosen on one half of the prompts, reported on the other", ""]
    blocks = dict(zip(scenario.frame["point_id"], scenario.frame["blocks"], strict=True))
    shown = [
        _row({**row, "blocks": blocks.get(row["chosen_point_id"])})
        for row in rows
        if not missing(row["chosen_point_id"])
    ]
    if not shown:
        return [*heading, f"Not given: {'; '.join(notes) or 'no shape could be chosen'}.", ""]
    return [
        *heading,
        "The fastest of many shapes is in part the luckiest. Here the shape is chosen on one half of the prompts and "
        "its numbers are those of the other half; hindsight-best is chosen and reported on all prompts, and looks "
        "better than it is.",
        "",
        *table(shown),
        "",
        *(f"- {note}" for note in notes),
        *([""] if notes else []),
    ]


def _row(row: Row) -> dict[str, str]:
    return {
        "Batch size": whole(row["batch_size"]),
        "Strategy": row["strategy"],
        "Chosen on one half": row["chosen_label"],
        "Tokens/s per user, other half": interval(row, "value", 1),
        "x autoregressive, other half": interval(row, "speedup_vs_autoregressive"),
        "Hindsight-best": row["hindsight_label"],
        "its tokens/s per user": number(row["hindsight_value"], 1),
        "its x autoregressive": number(row["hindsight_speedup"]),
        "n (prompts: chosen on + reported on)": f"{whole(row['prompts_choose'])} + {whole(row['prompts_report'])}",
    }
