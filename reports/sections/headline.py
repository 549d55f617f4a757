"""The answer in two sentences, who won and how sure that is, and the winner's command to copy."""

from __future__ import annotations

from typing import Any

from reports.aggregate import Analysis
from reports.baselines import speedup
from reports.choose import RATE, Scenario, best
from reports.frames import Stored, records
from reports.points import Point
from reports.sections import launch
from reports.sections.text import interval, listed, missing, number

Row = dict[str, Any]


def section(stored: Stored, analysis: Analysis, scenarios: list[Scenario]) -> list[str]:
    lines = ["## The answer", ""]
    for scenario in scenarios:
        ranked = {size: rows for size in scenario.batch_sizes if (rows := _ranked(scenario, size))}
        if not ranked:
            lines += [f"{scenario.title}: no point finished with status ok, so there is no answer.", ""]
            continue
        lines += [f"**{_who(scenario, ranked)}** {_how_sure(ranked, analysis)}", ""]
        lines += _commands(stored, ranked)
    if not scenarios:
        lines += ["Nothing was measured: there is no answer.", ""]
    return lines


def _ranked(scenario: Scenario, size: int) -> list[Row]:
    """The fastest point of each strategy at a batch size, fastest first."""
    winners = best(scenario.frame)
    return records(winners[winners["batch_size"] == size])


def _who(scenario: Scenario, ranked: dict[int, list[Row]]) -> str:
    """The first sentence: the fastest strategy of each batch size, and by how much against no speculation."""
    sizes: dict[str, list[int]] = {}
    for size, rows in ranked.items():
        sizes.setdefault(rows[0]["strategy"], []).append(size)
    clauses = [f"{strategy} was fastest at {_at(won)} ({_ratios(ranked, won)})" for strategy, won in sizes.items()]
    return f"On {scenario.title}, {listed(clauses)}."


def _ratios(ranked: dict[int, list[Row]], sizes: list[int]) -> str:
    """The winner's lead on no speculation at each batch size, its speed where there is no such baseline."""
    rows = [ranked[size][0] for size in sizes]
    if rows[0]["strategy"] == "autoregressive":
        return "no speculation beat it"
    if any(missing(row["speedup_vs_autoregressive"]) for row in rows):
        return f"{listed([number(row[RATE], 1) for row in rows])} tokens/s per user"
    return f"{listed([interval(row, 'speedup_vs_autoregressive') + 'x' for row in rows])} autoregressive decoding"


def _how_sure(ranked: dict[int, list[Row]], analysis: Analysis) -> str:
    """The second sentence: whether the lead can be told from chance, and what a choice on other prompts gave."""
    points = {point.row["point_id"]: point for point in analysis.points}
    kinds: dict[str, list[int]] = {}
    for size, rows in ranked.items():
        kinds.setdefault(_lead(rows, points), []).append(size)
    clauses = [f"at {_at(sizes)} {kind}" for kind, sizes in kinds.items()]
    text = "; ".join(clauses)
    text = f"{text[0].upper()}{text[1:]}"
    held = {size: row for size, (first, *_) in ranked.items() if (row := _held_out(analysis, size, first)) is not None}
    if not held:
        return f"{text}."
    gave = listed([f"{interval(row, 'speedup_vs_autoregressive')}x at batch size {size}" for size, row in held.items()])
    return f"{text}; its shape chosen on one half of the prompts gave {gave} on the other half."


def _lead(rows: list[Row], points: dict[str, Point]) -> str:
    first, *others = rows
    if not others:
        return "no other strategy finished, so nothing is compared"
    leads = [speedup(points[first["point_id"]], points[row["point_id"]]) for row in others]
    if any(lead.low is None for lead in leads):
        return "the lead has no interval, so it may be chance"
    close = [row["strategy"] for row, lead in zip(others, leads, strict=True) if not lead.excludes(1.0)]
    if close:
        return f"the lead is **not distinguishable** from {listed(close)}"
    return "the lead over every other strategy is distinguishable (95 %)"


def _held_out(analysis: Analysis, size: int, first: Row) -> Row | None:
    """The winning strategy's row of the split selection: its shape chosen on other prompts than it is reported on."""
    chosen = analysis.selection
    chosen = chosen[(chosen["scenario"] == first["scenario"]) & (chosen["batch_size"] == size)]
    rows = records(chosen[chosen["strategy"] == first["strategy"]])
    if not rows or missing(rows[0]["speedup_vs_autoregressive"]) or first["strategy"] == "autoregressive":
        return None
    return rows[0]


def _commands(stored: Stored, ranked: dict[int, list[Row]]) -> list[str]:
    """One block of shell, a paragraph a winning arm; the same arm at several batch sizes is given once."""
    given: dict[str, list[int]] = {}
    rows: dict[str, Row] = {}
    for size, (first, *_) in ranked.items():
        given.setdefault(first["label"], []).append(size)
        rows.setdefault(first["label"], first)
    lines = ["```sh"]
    for label, sizes in given.items():
        lines += [f"# {label}, the winner at {_at(sizes)}", *launch.lines(stored, rows[label])]
    return [*lines, "```", ""]


def _at(sizes: list[int]) -> str:
    return f"batch size{'s' if len(sizes) > 1 else ''} {listed([str(size) for size in sizes])}"
