"""What the machine did meanwhile: the telemetry strip in numbers."""

from __future__ import annotations

from reports import energy
from reports.frames import MEASURED, Stored, records
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
        *_energy(stored),
        *([f"Clocks were held back, as a share of all samples: {'; '.join(held)}.", ""] if held else []),
    ]


def _energy(stored: Stored) -> list[str]:
    """Joules an output token of each strategy, over its cells whose GPUs told what they used; nothing without."""
    used = energy.by_cell(stored.telemetry)
    tokens = stored.requests.groupby("cell_id")["output_tokens"].sum()
    sums: dict[str, tuple[float, int, int]] = {}
    for row in records(stored.cells[stored.cells["status"].isin(MEASURED)]):
        joules, count = used.get(row["cell_id"]), int(tokens.get(row["cell_id"], 0))
        if joules and count:
            before = sums.get(row["strategy"], (0.0, 0, 0))
            sums[row["strategy"]] = (before[0] + sum(joules.values()), before[1] + count, before[2] + 1)
    if not sums:
        return []
    told = [f"{name} {number(j / n, 3)} J ({counted(cells, 'cell')})" for name, (j, n, cells) in sums.items()]
    return [f"Energy of the GPUs for an output token, prefill and waiting included: {'; '.join(told)}.", ""]
