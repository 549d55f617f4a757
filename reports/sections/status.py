"""What did not go as planned: cells that are not ok, points that could not be."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reports.aggregate import Analysis
from reports.choose import labelled
from reports.frames import Stored, records
from reports.sections.text import table, whole

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
    lines += ["## Dropped grid points", "", *_dropped(stored.dropped), ""]
    unfinished = int(stored.cells["status"].isna().sum())
    if unfinished:
        lines += [
            f"{unfinished} cells have no final status: the run is not complete. Start it again with its `run_id`.",
            "",
        ]
    return [*lines, *(f"- {problem}" for problem in stored.problems), *([""] if stored.problems else [])]


def headline(stored: Stored) -> list[str]:
    """A line for the top of the page for each strategy of which nothing could be run, and why."""
    cells = stored.cells
    lines = []
    for (engine, strategy), group in cells.groupby(["engine", "strategy"], sort=False):
        if (group["status"] == "unsupported").all():
            reasons = "; ".join(dict.fromkeys(str(reason) for reason in group["reason"].dropna()))
            lines.append(f"> **{strategy} is unsupported on {engine}** and was not run as something else: {reasons}.")
    return [line for each in lines for line in (each, "")]


def _trouble(row: dict[str, Any]) -> dict[str, Any]:
    log = row["log"]
    return {
        "Arm": row["label"],
        "Engine": row["engine"],
        "Batch size": whole(row["batch_size"]),
        "Workload": row["dataset"],
        "Status": row["status"],
        "Reason": row["reason"],
        "Log": log if not isinstance(log, str) else ", ".join(f"[{path}]({path})" for path in log.split("; ")),
    }


def _notes(frame: Any) -> list[str]:
    """Why a speed-up is null, counted."""
    notes = Counter(str(note) for note in frame["baseline_note"].dropna())
    if not notes:
        return []
    rows = [{"Speed-up not given because": note, "Points": str(count)} for note, count in sorted(notes.items())]
    return ["Comparisons that were not made, or need care:", "", *table(rows), ""]


def _dropped(dropped: list[dict[str, Any]]) -> list[str]:
    """Grid points that could not be, one row a reason."""
    axes = ("strategy", "width", "depth", "nodes", "batch_size", "temperature")
    reasons: dict[str, list[dict[str, Any]]] = {}
    for point in dropped:
        reasons.setdefault(str(point.get("reason")), []).append(point)
    rows = []
    for reason, points in sorted(reasons.items()):
        row: dict[str, Any] = {"Reason": reason, "Points": str(len(points))}
        for axis in axes:
            values = dict.fromkeys("null" if point.get(axis) is None else str(point.get(axis)) for point in points)
            row[axis.replace("_", " ").capitalize()] = ", ".join(values)
        rows.append(row)
    return table(rows)
