"""What did not go as planned: cells that are not ok, cells that were not run, points that could not be."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reports.aggregate import Analysis
from reports.choose import labelled
from reports.frames import Stored, records
from reports.sections.text import LONGEST, literal, table, whole

MEANINGS = {
    "unsupported": "the engine cannot run the strategy; it was not run as something else",
    "failed": "ended in an error; nothing that a failed cell left behind is used",
    "suspect": "measured, but not trusted: shown, never named fastest",
}


def section(stored: Stored, analysis: Analysis) -> list[str]:
    frame = labelled(analysis.frame)
    troubled = frame[frame["status"] != "ok"]
    lines = ["## Unsupported, failed and suspect points", ""]
    lines += table([_trouble(row) for row in records(troubled)])
    lines += ["", *(f"- {name}: {text}" for name, text in MEANINGS.items() if (troubled["status"] == name).any()), ""]
    errors = frame[frame["errors"] > 0]
    if len(errors):
        rows = [
            {
                "Arm": row["label"],
                "Batch size": whole(row["batch_size"]),
                "Requests with an error": whole(row["errors"]),
            }
            for row in records(errors)
        ]
        lines += ["Requests that ended in an error are left out of every number:", "", *table(rows), ""]
    lines += _notes(frame)
    if stored.not_run:
        lines += ["## Planned cells that were not run", "", *_grouped(stored.not_run, "strategy", "Cells", "block"), ""]
    lines += ["## Dropped grid points", "", *_grouped(stored.dropped, "reason", "Points", "strategy"), ""]
    unfinished = int(stored.cells["status"].isna().sum())
    if unfinished:
        lines += [
            f"{unfinished} cells have no final status: the run is not complete. Start it again with its `run_id`.",
            "",
        ]
    return [*lines, *(f"- {problem}" for problem in stored.problems), *([""] if stored.problems else [])]


def _trouble(row: dict[str, Any]) -> dict[str, Any]:
    log = row["log"]
    return {
        "Arm": row["label"],
        "Engine": row["engine"],
        "Batch size": whole(row["batch_size"]),
        "Workload": literal(row["dataset"], LONGEST),
        "Status": row["status"],
        "Reason": literal(row["reason"]),
        "Log": log if not isinstance(log, str) else ", ".join(f"[{path}]({path})" for path in log.split("; ")),
    }


def _notes(frame: Any) -> list[str]:
    """Why a speed-up is null, and why one that is given needs care, counted."""
    notes = Counter(note for notes in frame["baseline_note"].dropna() for note in str(notes).split("; "))
    if not notes:
        return []
    lines = []
    for heading, given in (("Speed-up not given because", False), ("Speed-up given, but", True)):
        found = [(note, count) for note, count in sorted(notes.items()) if _given(note) == given]
        rows = [{heading: note, "Points": str(count)} for note, count in found]
        lines += [*table(rows), ""] if rows else []
    return ["Comparisons that were not made, or need care:", "", *lines]


def _given(note: str) -> bool:
    """Whether a part of ``baseline_note`` is about a comparison that was made."""
    return not note.startswith(("no ", "not compared"))


def _grouped(points: list[dict[str, Any]], by: str, count: str, further: str) -> list[str]:
    """Points one row a value of ``by``, with their number and the values that they have on each axis."""
    axes = ("width", "depth", "nodes", "batch_size", "temperature")
    groups: dict[str, list[dict[str, Any]]] = {}
    for point in points:
        groups.setdefault(str(point.get(by)), []).append(point)
    rows = []
    for value, group in sorted(groups.items()):
        row: dict[str, Any] = {by.capitalize(): value, count: str(len(group))}
        for axis in (further, *axes):
            values = dict.fromkeys("null" if point.get(axis) is None else str(point.get(axis)) for point in group)
            row[axis.replace("_", " ").capitalize()] = ", ".join(values)
        rows.append(row)
    return table(rows)
