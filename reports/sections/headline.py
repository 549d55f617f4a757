"""The answer in two sentences, who won and how sure that is, and the winner's command to copy."""

from __future__ import annotations

from typing import Any

from reports.aggregate import Analysis
from reports.baselines import speedup
from reports.choose import RATE, Scenario, best, why_none
from reports.frames import Stored, records
from reports.leads import behind, ordered
from reports.points import Point
from reports.sections import asked, fixed_length, launch, trust
from reports.sections.text import FEW_BLOCKS, listed, literal, missing, number, times, too_wide

Row = dict[str, Any]


def section(stored: Stored, analysis: Analysis, scenarios: list[Scenario]) -> list[str]:
    lines = ["## The answer", ""]
    for scenario in scenarios:
        lines += _answer(stored, analysis, scenario)
    if not scenarios:
        lines += ["Nothing was measured: there is no answer.", ""]
    return lines


def _answer(stored: Stored, analysis: Analysis, scenario: Scenario) -> list[str]:
    title = literal(scenario.title)
    ranked = {size: rows for size in scenario.batch_sizes if (rows := _ranked(scenario, size, analysis))}
    if not ranked:
        return [f"{title}: {why_none(scenario.frame)}. There is no answer.", ""]
    if scenario.fixed_length:
        return [f"**On {title}, {fixed_length.sentence(scenario)}**", ""]
    planned = asked.strategies(stored)
    if asked.against_itself(stored) or len(planned) == 1:
        return [
            f"**On {title}, {_alone(stored, planned)}** {_speeds(ranked)}",
            "",
            *_commands(stored, ranked, "measured at"),
        ]
    sure = f"{_how_sure(ranked, analysis)}{_few_blocks(ranked)}"
    sure += trust.headline(scenario.frame, [rows[0] for rows in ranked.values()])
    return [
        f"**On {title}, {_who(scenario, ranked, analysis)}** {sure}",
        "",
        *_commands(stored, ranked, "the winner at"),
    ]


def _alone(stored: Stored, planned: list[str]) -> str:
    """What there is to say where nothing can be compared, because nothing else was planned."""
    if asked.against_itself(stored):
        return "one arm was measured against itself: nothing is ranked."
    if planned == ["autoregressive"]:
        return "only autoregressive decoding was measured: nothing to compare."
    missing_ones = [name for name in ("autoregressive", "dflash") if name not in planned]
    return f"only {planned[0]} was measured, no baseline (add {', '.join(missing_ones)})."


def _speeds(ranked: dict[int, list[Row]]) -> str:
    """The speed at each batch size, of the fastest shape."""
    labels = {size: rows[0]["label"] for size, rows in ranked.items() if rows[0]["label"] != rows[0]["strategy"]}
    parts = [
        f"{number(rows[0][RATE], 1)} at batch size {size}{f' ({labels[size]})' if size in labels else ''}"
        for size, rows in ranked.items()
    ]
    return f"Decode tokens/s per user: {listed(parts)}."


def _ranked(scenario: Scenario, size: int, analysis: Analysis) -> list[Row]:
    """The fastest point of each strategy at a batch size, fastest first; see :func:`reports.leads.ordered`."""
    winners = best(scenario.frame)
    points = {point.row["point_id"]: point for point in analysis.points}
    return ordered(records(winners[winners["batch_size"] == size]), points)


def _who(scenario: Scenario, ranked: dict[int, list[Row]], analysis: Analysis) -> str:
    """The first sentence: the fastest strategy of each batch size, and by how much against no speculation."""
    points = {point.row["point_id"]: point for point in analysis.points}
    sizes: dict[tuple[str, str], list[int]] = {}
    for size, rows in ranked.items():
        place = "was fastest" if len(rows) > 1 else "alone finished"
        place = "came first by rate" if behind(rows, points) else place
        sizes.setdefault((_winner(rows[0], scenario), place), []).append(size)
    clauses = [f"{strategy} {place} at {_at(won)} ({_ratios(ranked, won)})" for (strategy, place), won in sizes.items()]
    return f"{listed(clauses)}."


def _winner(row: Row, scenario: Scenario) -> str:
    """Its strategy, and where a run gave names to several drafters, which of them."""
    name = scenario.frame.attrs.get("drafters", {}).get(row["drafter"])
    return row["strategy"] if name is None else f"{row['strategy']} with {name}"


def _ratios(ranked: dict[int, list[Row]], sizes: list[int]) -> str:
    """The winner's lead on no speculation at each batch size, its speed where there is no such baseline."""
    rows = [ranked[size][0] for size in sizes]
    if rows[0]["strategy"] == "autoregressive" and any(len(ranked[size]) > 1 for size in sizes):
        return "no speculation beat it"
    own = rows[0]["strategy"] == "autoregressive"
    if own or any(missing(row["speedup_vs_autoregressive"]) for row in rows):
        return f"{listed([number(row[RATE], 1) for row in rows])} tokens/s per user"
    return f"{listed([times(row, 'speedup_vs_autoregressive') for row in rows])} autoregressive decoding"


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
    gave = listed([f"{times(row, 'speedup_vs_autoregressive')} at batch size {size}" for size, row in held.items()])
    return f"{text}; its shape chosen on one half of the prompts gave {gave} on the other half."


def _few_blocks(ranked: dict[int, list[Row]]) -> str:
    """A sentence more where an interval that two blocks gave is left out."""
    firsts = [rows[0] for rows in ranked.values()]
    wide = any(too_wide(row, "speedup_vs_autoregressive") for row in firsts)
    return f" ({FEW_BLOCKS}.)" if wide else ""


def _lead(rows: list[Row], points: dict[str, Point]) -> str:
    first, *others = rows
    if not others:
        return "no other strategy finished, so nothing is compared"
    leads = [speedup(points[first["point_id"]], points[row["point_id"]]) for row in others]
    if any(lead.low is None for lead in leads):
        return "the lead has no interval, so it may be chance"
    faster = [row["strategy"] for row, lead in zip(others, leads, strict=True) if lead.verdict == "slower"]
    if faster:
        return f"there is **no clear winner**: paired by request {listed(faster)} was faster"
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
    return {**rows[0], "blocks": first["blocks"]}


def _commands(stored: Stored, ranked: dict[int, list[Row]], what: str) -> list[str]:
    """One block of shell, a paragraph a winning arm; the same arm at several batch sizes is given once."""
    given: dict[str, list[int]] = {}
    rows: dict[str, Row] = {}
    for size, (first, *_) in ranked.items():
        given.setdefault(first["label"], []).append(size)
        rows.setdefault(first["label"], first)
    lines = ["```sh"]
    for label, sizes in given.items():
        lines += [f"# {label}, {what} {_at(sizes)}", *launch.lines(stored, rows[label])]
    return [*lines, "```", ""]


def _at(sizes: list[int]) -> str:
    return f"batch size{'s' if len(sizes) > 1 else ''} {listed([str(size) for size in sizes])}"
