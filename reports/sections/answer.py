"""The results in sentences: which strategy won and which lost at each batch size, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from reports.aggregate import Analysis
from reports.baselines import speedup
from reports.choose import RATE, Scenario, best, fixed, ordered_strategies, usable, why_none
from reports.columns import BASELINES
from reports.crossover import crossovers
from reports.frames import Stored, records
from reports.leads import ordered
from reports.points import Point
from reports.sections import fixed_length
from reports.sections.text import FEW_BLOCKS, as_row, literal, missing, number, times, too_wide
from reports.statistics import Estimate

Row = dict[str, Any]


def counts(stored: Stored, analysis: Analysis) -> list[str]:
    """One line: how many cells and points the page rests on."""
    cells = stored.cells["status"].fillna("unfinished").value_counts()
    parts = [
        f"{cells[name]} {name}" for name in ("ok", "unsupported", "failed", "suspect", "unfinished") if name in cells
    ]
    points = f"{analysis.table.num_rows} points" if analysis.table.num_rows != 1 else "1 point"
    return [f"Cells: {', '.join(parts) or 'none'}; {points}."]


def statements(scenario: Scenario, analysis: Analysis, planned: Sequence[str]) -> list[str]:
    """A bullet a batch size, the losers below the winner, then what to distrust. ``planned``: the run's strategies."""
    winners = best(scenario.frame)
    if winners.empty:
        why = why_none(scenario.frame)
        return [f"{why[0].upper()}{why[1:]}. There is no answer."]
    if scenario.fixed_length:
        return fixed_length.results(scenario)
    points = {point.row["point_id"]: point for point in analysis.points}
    title = literal(scenario.title)
    lines = [f"{title}. Speed is decode tokens/s per user; intervals are 95 %, n counts prompts.", ""]
    for size in scenario.batch_sizes:
        here = ordered(records(winners[winners["batch_size"] == size]), points)
        none = f"- **Batch size {size}**: {why_none(scenario.at(size))}."
        lines += _at(size, here, scenario, points, len(planned) == 1) if here else [none]
    absent = [name for name in ("autoregressive", "dflash") if name not in ordered_strategies(usable(scenario.frame))]
    lines += [_absent(name, name in planned, scenario) for name in absent]
    lines += _crossings(scenario)
    caution = _caution(winners, scenario)
    return [*lines, "", caution] if caution else lines


def verdict(row: Row, name: str) -> str:
    """``faster``, ``slower`` or ``not distinguishable`` as the results say; why not, where they say nothing."""
    if missing(row[name]):
        return "not compared"
    if row["point_id"] == row[f"{name.removeprefix('speedup_vs_')}_point_id"]:
        return "the baseline"
    return "no interval" if missing(row[f"{name}_verdict"]) else str(row[f"{name}_verdict"])


def _absent(strategy: str, planned: bool, scenario: Scenario) -> str:
    mine = scenario.frame[scenario.frame["strategy"] == strategy]
    statuses = sorted(set(mine[mine["requests"].fillna(0) > 0]["status"]) - {"ok"})
    if statuses:
        return f"- The {strategy} arm is {' or '.join(statuses)} here: what is said against it rests on that."
    if (mine["status"] == "ok").any():
        return f"- The {strategy} arm has other settings than the rest: there is no speed-up against it."
    how = f"No {strategy} arm finished here" if planned else f"No {strategy} arm was planned"
    return f"- {how}: there is no speed-up against it."


def _at(size: int, rows: list[Row], scenario: Scenario, points: dict[str, Point], alone: bool) -> list[str]:
    first, *others = rows
    leads = [speedup(points[first["point_id"]], points[row["point_id"]]) for row in others]
    speed = f"{number(first[RATE], 1)} tokens/s per user{_against(first, scenario)}"
    lines = [f"- **Batch size {size}: {first['strategy']} {_won(others, leads, alone)}**{_with(first)}, at {speed}."]
    for row, lead in zip(others, leads, strict=True):
        speed = f"{number(row[RATE], 1)} tokens/s{_against(row, scenario)}"
        lines.append(f"  - {row['label']} {_lost(lead, first)}, at {speed}.")
    return lines + _trees(size, scenario)


def _won(others: list[Row], leads: list[Estimate], alone: bool) -> str:
    """``won``; or that it came first without a difference one can tell."""
    if not others:
        return "is the only strategy that was planned" if alone else "is the only strategy that finished"
    if any(lead.low is None for lead in leads):
        return "came first, without an interval"
    faster = [row["strategy"] for row, lead in zip(others, leads, strict=True) if lead.verdict == "slower"]
    if faster:
        return f"came first by rate, but paired by request {' and '.join(faster)} was faster"
    close = [row["strategy"] for row, lead in zip(others, leads, strict=True) if not lead.excludes(1.0)]
    return f"came first, not distinguishable from {' and '.join(close)}" if close else "won"


def _lost(lead: Estimate, first: Row) -> str:
    ratio = f"{first['label']} was {times(as_row(lead), 'value')} as fast"
    if lead.verdict == "slower":
        return f"came behind by rate, but was faster paired by request ({ratio})"
    if lead.low is None:
        return f"came behind, without an interval ({ratio})"
    return f"lost ({ratio})" if lead.excludes(1.0) else f"came behind, not distinguishably ({ratio})"


def _with(row: Row) -> str:
    return "" if row["label"] == row["strategy"] else f" with {row['label']}"


def _against(row: Row, scenario: Scenario) -> str:
    labels = dict(zip(scenario.frame["point_id"], scenario.frame["label"], strict=True))
    parts = []
    for name, words in (("autoregressive", "autoregressive decoding"), ("dflash", "the chain {}")):
        column, baseline = f"speedup_vs_{name}", row[f"{name}_point_id"]
        if not missing(row[column]) and row["point_id"] != baseline:
            against = words.format(labels.get(baseline, ""))
            n = int(row[f"{column}_n"])
            parts.append(f"{times(row, column)} {against} ({verdict(row, column)}, n = {n})")
    return ": " + " and ".join(parts) if parts else ""


def _trees(size: int, scenario: Scenario) -> list[str]:
    """How many shapes of each tree strategy beat the chain: the losing ones are results too."""
    lines = []
    frame = usable(scenario.at(size))
    for strategy in ("eagle", "ddtree"):
        mine = frame[(frame["strategy"] == strategy) & frame["speedup_vs_dflash"].notna()]
        if len(mine) < 2:
            continue
        verdicts = [verdict(row, "speedup_vs_dflash") for row in records(mine)]
        faster, slower = verdicts.count("faster"), verdicts.count("slower")
        unsure, bare = verdicts.count("not distinguishable"), verdicts.count("no interval")
        worst = records(mine.sort_values("speedup_vs_dflash", kind="stable").head(1))[0]
        lines.append(
            f"  - Of {len(mine)} {strategy} shapes against the chain: {faster} faster, {slower} slower, "
            f"{unsure} not distinguishable{f', {bare} without an interval' if bare else ''}; the worst is "
            f"{worst['label']} at {times(worst, 'speedup_vs_dflash')}."
        )
    return lines


def _crossings(scenario: Scenario) -> list[str]:
    """At which batch size the fixed shape of a strategy stops, or starts, to beat autoregressive decoding."""
    name = "speedup_vs_autoregressive"
    frame = fixed(scenario.frame)
    frame = frame[(frame[name] > 0) & (frame["strategy"] != "autoregressive")]
    lines = []
    for label, mine in frame.groupby("label", sort=False):
        sizes, ratios = [int(size) for size in mine["batch_size"]], [float(ratio) for ratio in mine[name]]
        for crossover in crossovers(sizes, ratios):
            way = "rises above" if crossover.rises else "falls below"
            lines.append(
                f"- **Crossover**: {label} {way} autoregressive decoding at about batch size {crossover.at:.2g} "
                "(interpolated between measured sizes, without an interval)."
            )
    return lines


def _caution(winners: pd.DataFrame, scenario: Scenario) -> str:
    most = int(usable(scenario.frame).groupby(["batch_size", "strategy"]).size().max())
    text = (
        "The shape named for a strategy is its **hindsight-best**: the fastest of all that were tried at that batch "
        f"size, on the same prompts (up to {most} shapes). The best of many looks better than it is; its interval "
        "does not allow for that choice."
    )
    if most == 1:
        text = ""
    if any(too_wide(row, f"speedup_vs_{name}") for row in records(usable(scenario.frame)) for name in BASELINES):
        text += f" {FEW_BLOCKS[0].upper()}{FEW_BLOCKS[1:]}."
    if (winners["prompts"] == 1).any():
        text += " With one prompt there is no interval: n = 1."
    few = sorted({int(size) for size in winners[winners[f"{RATE}_low"].isna()]["batch_size"] if size > 1})
    if few:
        sizes = ", ".join(str(size) for size in few)
        text += (
            f" At batch size {sizes} there are fewer than two batches of prompts: they share their rounds, so their "
            "times are one observation and have no interval. More prompts would give one."
        )
    return text.strip()
