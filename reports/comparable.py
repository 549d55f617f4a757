"""Which points of a scenario may be set against one another: those whose settings are alike but for the arm."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reports.frames import MEASURED, records

BASELINE = "autoregressive"
SAID = ("attached", "model_runner")  # flags that a label states in words of its own


def main_fingerprints(frame: pd.DataFrame) -> dict[tuple[Any, Any], str]:
    """By scenario and batch size, the fingerprint that most measured points share, one with the baseline first.

    Of equals the one of more strategies, then the first in order. A point that was not measured knows no machine, hence
    has no say.
    """
    found: dict[tuple[Any, Any], str] = {}
    measured = frame[frame["status"].isin(MEASURED)]
    for key, group in measured.groupby(["scenario", "batch_size"], sort=False):
        kinds = {
            str(fingerprint): (not (points["strategy"] == BASELINE).any(), -len(points), -points["strategy"].nunique())
            for fingerprint, points in group.groupby("fingerprint")
        }
        found[key] = min(kinds, key=lambda name: (*kinds[name], name))  # type: ignore[index]
    return found


def alike(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Whether each point has the main fingerprint of its scenario and batch size; those that were not measured do."""
    main = main_fingerprints(frame)
    rows = records(frame[["status", "fingerprint", "scenario", "batch_size"]])
    same = [
        row["status"] not in MEASURED or row["fingerprint"] == main[row["scenario"], row["batch_size"]] for row in rows
    ]
    return np.asarray(same, dtype=bool)


def peculiarities(frame: pd.DataFrame) -> list[str]:
    """For each point what tells its settings from the main ones, as text for its label; empty where nothing does."""
    rows, same = records(frame), alike(frame)
    usual = {
        (row["scenario"], row["batch_size"]): json.loads(row["flags"] or "{}")
        for row, is_main in zip(rows, same, strict=True)
        if is_main and row["status"] in MEASURED
    }
    return [
        "" if is_main else _apart(json.loads(row["flags"] or "{}"), usual[row["scenario"], row["batch_size"]])
        for row, is_main in zip(rows, same, strict=True)
    ]


def _apart(mine: dict[str, Any], usual: dict[str, Any]) -> str:
    names = [name for name in sorted(mine.keys() | usual.keys()) if mine.get(name) != usual.get(name)]
    if any(name in SAID for name in names):
        return ""
    shown = ", ".join(f"{name}={json.dumps(mine.get(name))}" for name in names)
    return f" [{shown or 'another machine or build'}]"
