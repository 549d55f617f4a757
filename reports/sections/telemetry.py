"""What the machine did meanwhile: the telemetry strip in numbers."""

from __future__ import annotations

from reports.frames import Stored
from reports.sections.text import counted, number, table
from reports.telemetry import by_cell, throttled


def section(stored: Stored, pictures: list[str]) -> list[str]:
    """``pictures``: lines of markdown that show the figure; they stand above the table."""
    frame = by_cell(stored)
    if frame.empty:
        return []
    rows = []
    for name, cells in frame.groupby("name", sort=True):
        rows.append(
            {
                "Quantity": f"`{name}`",
                "Lowest sample": number(cells["low"].min(), 1),
                "Medians of cells: lowest": number(cells["median"].min(), 1),
                "median": number(cells["median"].median(), 1),
                "highest": number(cells["median"].max(), 1),
                "Highest sample": number(cells["high"].max(), 1),
                "n (samples)": str(int(cells["samples"].sum())),
            }
        )
    held = [f"{name} in {100 * share:.1f} %" for name, share in throttled(stored).items()]
    return [
        "## Telemetry",
        "",
        f"Samples of {counted(frame['cell_id'].nunique(), 'cell')}, about one a second.",
        "",
        *pictures,
        *table(rows),
        "",
        *([f"Clocks were held back, as a share of all samples: {'; '.join(held)}.", ""] if held else []),
    ]
