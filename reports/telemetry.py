"""What the machine did while each cell ran: telemetry samples to one row a cell and name."""

from __future__ import annotations

from datetime import datetime

import pandas as pd

from reports.frames import Stored, records

# NVML's bit mask of why a GPU's clocks are lower than they could be (nvml.h, nvmlClocksEventReasons).
THROTTLE_REASONS = {
    0x2: "applications clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
MASK = "gpu_throttle_reasons"


def by_cell(stored: Stored) -> pd.DataFrame:
    """Rows (cell_id, name, low, median, high, samples, strategy, minutes) of every measured cell, in order of time.

    ``minutes`` is when the cell began, after the first one of the run; cells whose start is not stored are left out.
    The throttle mask is no quantity and not among the names: see :func:`throttled`.
    """
    columns = ["cell_id", "name", "low", "median", "high", "samples", "strategy", "minutes"]
    samples = stored.telemetry[(stored.telemetry["name"] != MASK) & stored.telemetry["value"].notna()]
    cells = stored.cells[stored.cells["started"].notna()]
    if samples.empty or cells.empty:
        return pd.DataFrame(columns=columns)
    grouped = samples.groupby(["cell_id", "name"])["value"]
    frame = grouped.agg(low="min", median="median", high="max", samples="size").reset_index()
    began = {row["cell_id"]: datetime.fromisoformat(row["started"]) for row in records(cells)}
    first = min(began.values())
    strategies = dict(zip(cells["cell_id"], cells["strategy"], strict=True))
    frame = frame[frame["cell_id"].isin(began)]
    frame["strategy"] = frame["cell_id"].map(strategies)
    frame["minutes"] = [(began[cell_id] - first).total_seconds() / 60 for cell_id in frame["cell_id"]]
    return frame.sort_values(["minutes", "cell_id", "name"], kind="stable")[columns].reset_index(drop=True)


def throttled(stored: Stored) -> dict[str, float]:
    """Share of the samples of the throttle mask in which each reason held; a reason that never did is left out."""
    masks = stored.telemetry.loc[stored.telemetry["name"] == MASK, "value"].dropna().astype("int64")
    shares = {name: float(((masks & bit) != 0).mean()) for bit, name in THROTTLE_REASONS.items()} if len(masks) else {}
    return {name: share for name, share in shares.items() if share > 0}
