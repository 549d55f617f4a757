"""Drift: whether the machine was as fast in a later block of repetition as in the first."""

from __future__ import annotations

import pandas as pd

from reports.aggregate import Analysis
from reports.choose import differences
from reports.frames import records
from reports.sections.text import literal, number, table, whole


def section(frame: pd.DataFrame, analysis: Analysis) -> list[str]:
    """Decode speed of each block of repetition against the first, over the arms that both measured."""
    rows = records(analysis.drift)
    if not rows:
        return []
    further = differences(frame)
    titles = {
        row["scenario"]: literal(f"{row['dataset']}, T = {row['temperature']:g}{further[row['scenario']]}")
        for row in records(frame)
    }
    return [
        "## Drift",
        "",
        "The same arms in a later block of repetition: decode speed against the first block, geometric mean over "
        "arms. A machine that slows down as it warms shows here.",
        "",
        *table(
            [
                {
                    "Workload": titles.get(row["scenario"]),
                    "Batch size": whole(row["batch_size"]),
                    "Block": whole(row["block"]),
                    "First cell begun": row["first_started"],
                    "Relative decode speed": number(row["relative_rate"], 3),
                    "n (arms)": whole(row["n"]),
                }
                for row in rows
            ]
        ),
        "",
    ]
