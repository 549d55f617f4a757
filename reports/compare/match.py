"""Which point of one run is the same as which of another: equal in everything but what the two runs differ in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from reports.points import Point

# The question that a point answers. Two points that differ in any of these are never the same point.
ASKED = (
    "strategy",
    "width",
    "depth",
    "nodes",
    "force_spine",
    "min_log_prob",
    "policy",
    "batch_size",
    "temperature",
    "model",
    "dataset",
    "max_new_tokens",
    "top_p",
    "top_k",
)
# What two runs may differ in; an arm's flags are further such facts.
FACTS = (
    "engine",
    "engine_version",
    "build",
    "cost",
    "target",
    "target_revision",
    "drafter",
    "drafter_revision",
    "host",
    "gpu",
    "power_limit_w",
    "prompts_hash",
    "seed",
)


@dataclass(frozen=True)
class Pair:
    """One point as each run measured it. ``differs``: fact -> (its value in the first run, in the second)."""

    ours: Point
    theirs: Point
    differs: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Matched:
    """Pairs in the first run's order, and the points that only one of the runs has."""

    pairs: list[Pair]
    only_ours: list[Point]
    only_theirs: list[Point]


def match(ours: list[Point], theirs: list[Point]) -> Matched:
    """Pair the points of two runs.

    Points that ask the same question (:data:`ASKED`) are a pair where each run has one such point, whatever else
    differs. Where a run has several (two drafters, say, or the engine's defaults beside our settings), those facts in
    which they differ within a run must be equal too; what is then still ambiguous is no pair.
    """
    groups: dict[tuple[Any, ...], tuple[list[Point], list[Point]]] = {}
    for side, points in enumerate((ours, theirs)):
        for point in points:
            groups.setdefault(_asked(point), ([], []))[side].append(point)
    partner: dict[str, Point] = {}
    taken: set[str] = set()
    for first, second in groups.values():
        telling = _varying(first) | _varying(second)
        for point in first:
            mine = [each for each in first if _values(each, telling) == _values(point, telling)]
            rivals = [each for each in second if _values(each, telling) == _values(point, telling)]
            if len(mine) == len(rivals) == 1:
                partner[point.row["point_id"]] = rivals[0]
                taken.add(rivals[0].row["point_id"])
    pairs = [Pair(p, q, differing(p, q)) for p in ours if (q := partner.get(p.row["point_id"])) is not None]
    return Matched(
        pairs,
        [point for point in ours if point.row["point_id"] not in partner],
        [point for point in theirs if point.row["point_id"] not in taken],
    )


def facts(point: Point) -> dict[str, Any]:
    """What a point says of engine, models, machine and settings; flags by ``flags.<name>``."""
    flags = json.loads(point.row["flags"] or "{}")
    named = {name: point.row.get(name) for name in FACTS}
    return named | {f"flags.{name}": value for name, value in sorted(flags.items())}


def differing(point: Point, other: Point) -> dict[str, tuple[Any, Any]]:
    """The facts in which two points differ, with both values; a fact that one lacks is None there."""
    ours, theirs = facts(point), facts(other)
    names = [*ours, *(name for name in theirs if name not in ours)]
    return {name: (ours.get(name), theirs.get(name)) for name in names if ours.get(name) != theirs.get(name)}


def _asked(point: Point) -> tuple[Any, ...]:
    return tuple(point.row[name] for name in ASKED)


def _varying(points: list[Point]) -> set[str]:
    """Facts that have more than one value among the points."""
    return {name for point in points[1:] for name in differing(points[0], point)}


def _values(point: Point, names: Iterable[str]) -> tuple[str, ...]:
    known = facts(point)
    return tuple(json.dumps(known.get(name), sort_keys=True) for name in sorted(names))
