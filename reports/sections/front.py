"""What a reader must know before any number: what was not run, what cannot be, what was not checked, which load."""

from __future__ import annotations

from collections import Counter
from typing import Any

from reports.aggregate import Analysis
from reports.choose import STRATEGIES, labelled
from reports.frames import Stored, flag, records

MOST_REASONS = 2  # on the first page; the table of points that are not ok has all


def notes(stored: Stored, analysis: Analysis) -> list[str]:
    """The lines for the top of the page, each a quotation of its own; none where all went as planned."""
    found = [*_not_run(stored), *_unsupported(stored), *_attached(analysis), *_arrivals(stored)]
    return [line for note in found for line in (f"> {note}", "")]


def _not_run(stored: Stored) -> list[str]:
    """How many of the planned cells the run has not come to, and of which strategies."""
    if not stored.not_run:
        return []
    missing = Counter(str(row.get("strategy")) for row in stored.not_run)
    order = [name for name in STRATEGIES if name in missing] + sorted(missing.keys() - set(STRATEGIES))
    parts = ", ".join(f"{name} {missing[name]}" for name in order)
    run_id = stored.config.get("run_id") or stored.run.resolve().name
    return [
        f"**{len(stored.not_run)} of {stored.planned} planned cells were not run: {parts}.** What follows rests on the "
        f"others alone; the command that planned them goes on with `run_id={run_id}`."
    ]


def _unsupported(stored: Stored) -> list[str]:
    """A line for each strategy of which nothing, or not everything, can be run, and why."""
    lines = []
    for (engine, strategy), group in stored.cells.groupby(["engine", "strategy"], sort=False):
        refused = group[group["status"] == "unsupported"]
        if refused.empty:
            continue
        pending = [row for row in stored.not_run if (row.get("engine"), row.get("strategy")) == (engine, strategy)]
        reasons = sorted({str(reason) for reason in refused["reason"].dropna()})
        why = "; ".join(reasons[:MOST_REASONS])
        if len(reasons) > MOST_REASONS:
            why += f"; and {len(reasons) - MOST_REASONS} more reasons, in the table of unsupported points"
        if len(refused) == len(group) and not pending:
            lines.append(f"**{strategy} is unsupported on {engine}** and was not run as something else: {why}.")
            continue
        others = [*records(group[group["status"] != "unsupported"]), *pending]
        count = _count(str(strategy), records(refused), others)
        lines.append(f"**{count} unsupported on {engine}**, and nothing else was run instead: {why}.")
    return lines


def _count(strategy: str, refused: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """``4 of 6 eagle shapes are``; in cells where the same shape can be run at another temperature."""
    cannot, can = ({(row["width"], row["depth"], row["nodes"]) for row in rows} for rows in (refused, others))
    if cannot & can:
        return f"{len(refused)} of {len(refused) + len(others)} {strategy} cells are"
    return f"{len(cannot)} of {len(cannot | can)} {strategy} shapes {'are' if len(cannot) > 1 else 'is'}"


def _attached(analysis: Analysis) -> list[str]:
    """Names the arms of servers that somebody else started."""
    frame = labelled(analysis.frame)
    measured = [row for row in records(frame) if row["status"] != "unsupported"]
    labels = dict.fromkeys(row["label"] for row in measured if flag(row["flags"], "attached"))
    if not labels:
        return []
    arms = ", ".join(labels)
    return [
        f"**{arms}: measured on a server that was already running (`engine.url`).** Strategy, shape, model and "
        "settings of that server are believed, not checked. Its flags are not known, and no `engine.flags` describe "
        "them; a comparison with another such arm takes for granted that they were equal."
    ]


def _arrivals(stored: Stored) -> list[str]:
    """Names the load where it is an open loop."""
    rates = [flag(flags, "request_rate") for flags in stored.cells["flags"]]
    found = sorted({float(rate) for rate in rates if rate is not None})
    if not found:
        return []
    where = "Where the title says open loop, requests" if None in rates else "Requests"
    each = " or ".join(f"{rate:g}" for rate in found)
    return [
        f"**{where} arrived at random, {each} a second (`load=open`).** The batch size is a cap on requests in flight, "
        "not their number; aggregate tokens/s is then set by the arrivals and is no speed of the engine."
    ]
