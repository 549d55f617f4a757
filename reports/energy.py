"""Energy of a cell's GPUs, from the readings that were stored while it was measured."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

COUNTER = "energy_j"  # of NVML, joules since the driver was loaded
POWER = "power_w"
GPU = re.compile(r"(gpu\d*)_(?:energy_j|power_w)")


def by_cell(telemetry: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Joules that each GPU used while a cell was measured, by cell and GPU (``gpu``, ``gpu1``, ...).

    The difference of the GPU's own counter where it has one; else the integral of its power over the readings
    (trapezoidal rule). A GPU with fewer than two readings is left out.
    """
    rows = telemetry[telemetry["name"].str.fullmatch(GPU.pattern).fillna(False) & telemetry["value"].notna()]
    found: dict[str, dict[str, float]] = {}
    for (cell_id, name), part in rows.sort_values("time_s", kind="stable").groupby(["cell_id", "name"]):
        match = GPU.fullmatch(str(name))
        if match is None or len(part) < 2:
            continue
        gpus, counted = found.setdefault(str(cell_id), {}), str(name).endswith(COUNTER)
        values, times = (part[column].to_numpy(dtype=np.float64) for column in ("value", "time_s"))
        if counted and values[-1] >= values[0]:
            gpus[match.group(1)] = float(values[-1] - values[0])
        elif not counted:
            gpus.setdefault(match.group(1), float(np.trapezoid(values, times)))
    return found


def of_cells(energy: dict[str, dict[str, float]], cells: list[dict[str, Any]], gpus: int) -> float | None:
    """Joules of all ``gpus`` GPUs over some cells; None where a reading of one of them is missing."""
    each = [energy.get(str(cell["cell_id"]), {}) for cell in cells]
    if not each or any(len(one) != gpus for one in each):
        return None
    return sum(sum(one.values()) for one in each)
