"""Drafters of one target side by side: acceptance by checkpoint, category and depth. Of runs with several alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reports.acceptance import acceptance_by_depth
from reports.aggregate import Analysis
from reports.checkpoints import LEAST_PROMPTS, Checkpoint, Group, checkpoints_of, groups_of, smallest, verdict
from reports.frames import Stored
from reports.measures import ratios
from reports.sections.text import LONGEST, bounds, counted, folded, interval, literal, number, table, whole

SAME = "same weights"


def section(stored: Stored, analysis: Analysis, pictures: Sequence[str] = ()) -> list[str]:
    """The section with its figures, already as lines; an empty list where the run has one drafter a strategy."""
    found = checkpoints_of(stored)
    if not found:
        return []
    groups = groups_of(analysis, found)
    lines = ["## Drafter checkpoints", "", *_identities(found), ""]
    if not groups:
        return [*lines, "No arm finished with status ok with two of them: there is nothing to compare.", ""]
    first = found[0].name
    lines += [
        f"Acceptance length of each, and its difference from that of **{first}**, the first one named, on the prompts "
        "that both finished: paired by prompt, with 95 % intervals. An interval that contains 0 is called not "
        "distinguishable. Acceptance has no clock in it; speed has, and checkpoints are measured one after another, so "
        "that a drift of the machine falls on the speed ratio: it has an interval only with two blocks or more "
        "(`load.blocks`), which are run in alternating order.",
        "",
        *table([row for group in groups for row in _overall(group, found)]),
        "",
        *pictures,
    ]
    for group in smallest(groups):
        lines += [*_by_category(group, found), *_by_depth(group), ""]
    return lines


def _identities(found: Sequence[Checkpoint]) -> list[str]:
    rows = [
        {
            "Checkpoint": each.name,
            "Drafter": each.source,
            "Hash of weights and config": each.revision,
            "Note": f"{SAME} as {each.same_as}" if each.same_as else None,
        }
        for each in found
    ]
    return table(rows)


def _overall(group: Group, found: Sequence[Checkpoint]) -> list[dict[str, str]]:
    """A row a checkpoint."""
    reference = next(iter(group.points))
    rows = []
    for name, point in group.points.items():
        difference, speed = group.difference(name, reference), group.speed_ratio(name, reference)
        own = name == reference
        measured = ratios(point.sums, "tokens_per_s_per_user")
        rows.append(
            {
                "Batch size": whole(group.batch_size),
                "Arm": group.label,
                "Checkpoint": name,
                "Acceptance length": bounds(group.length(name)),
                f"Less {reference}'s": number(None) if own else bounds(difference),
                "Verdict": "the reference" if own else verdict(difference) + _twins(name, reference, found),
                "Decode tokens/s per user": interval(measured, "tokens_per_s_per_user", 1),
                f"Speed, x {reference}": number(None) if own else bounds(speed),
                "n (prompts)": whole(len(point.sums.prompts)),
            }
        )
    return rows


def _by_category(group: Group, found: Sequence[Checkpoint]) -> list[str]:
    """A row a category: each checkpoint's acceptance length, the best one, and those not distinguishable from it."""
    rows = []
    for category in group.categories:
        prompts = group.prompts(category)
        measured = {name: group.length(name, category) for name in group.points}
        lengths = {name: length.value for name, length in measured.items()}
        rows.append(
            {
                "Category": literal(category, LONGEST),
                **{name: bounds(length) for name, length in measured.items()},
                "Best": _best(group, category, lengths, found),
                "n (prompts)": whole(len(prompts)),
            }
        )
    told = [row for row in rows if int(row["n (prompts)"]) >= LEAST_PROMPTS]
    pairs = len(told) * (len(group.points) - 1)
    return [
        f"### By category: {group.label}, batch size {group.batch_size}",
        "",
        *table(rows),
        "",
        "Acceptance length of the prompts of each category. Best is the highest; after it, those whose difference from "
        f"it has an interval that contains 0. Below {LEAST_PROMPTS} prompts there is no interval and no comparison. "
        f"These are {counted(pairs, 'comparison')}: of drafters that are in truth equal, about one in twenty will look "
        "different.",
        "",
    ]


def _best(group: Group, category: str, lengths: dict[str, float | None], found: Sequence[Checkpoint]) -> str | None:
    known = {name: value for name, value in lengths.items() if value is not None}
    if not known:
        return None
    winner = max(known, key=lambda name: known[name])
    prompts = len(group.prompts(category))
    if prompts < LEAST_PROMPTS:
        return f"{winner} ({'one prompt' if prompts == 1 else 'two prompts, no interval'})"
    others = [
        name + _twins(name, winner, found)
        for name in known
        if name != winner and verdict(group.difference(winner, name, category)) != "better"
    ]
    return winner if not others else f"{winner}; not distinguishable: {', '.join(others)}"


def _by_depth(group: Group) -> list[str]:
    """Both rates of each checkpoint, a row a depth."""
    rates = {name: acceptance_by_depth(point) for name, point in group.points.items()}
    rows = []
    for index in range(max(map(len, rates.values()))):
        row = {"Depth": whole(index + 1)}
        for kind in ("unconditional", "conditional"):
            for name, each in rates.items():
                row[f"{name}, {kind}"] = _rate(each[index], kind) if index < len(each) else number(None)
        rows.append(row)
    text = [
        "Unconditional: share of all rounds that accept at least so many drafted tokens. Conditional: of the rounds "
        "that accepted one fewer.",
        "",
        *table(rows),
    ]
    return folded(f"Acceptance by depth: {group.label}, batch size {group.batch_size}", text)


def _rate(row: dict[str, Any], kind: str) -> str:
    """A rate with its interval, which ends at 1, where that of a ratio of sums need not."""
    high = row[f"{kind}_high"]
    return interval(row if high is None else {**row, f"{kind}_high": min(high, 1.0)}, kind)


def _twins(name: str, other: str, found: Sequence[Checkpoint]) -> str:
    """`` (same weights)`` where two checkpoints have one hash."""
    hashes = {each.name: each.revision for each in found}
    return f" ({SAME})" if hashes[name] is not None and hashes[name] == hashes[other] else ""
