"""What differs between two runs, as far as they stored it: facts of the points, environment, configuration."""

from __future__ import annotations

import json
from typing import Any

from reports.compare.match import Pair
from reports.frames import Stored
from reports.sections.text import NOTHING, literal
from reports.starts import leaves

UNTOLD = ("run_id", "output_dir", "_target_", "command", "started")  # differ between any two runs and change nothing

Row = dict[str, str]


def of_points(pairs: list[Pair]) -> list[Row]:
    """One row a fact and pair of values, with the number of points that it holds for; facts in the pairs' order."""
    counts: dict[tuple[str, str, str], int] = {}
    for pair in pairs:
        for name, (ours, theirs) in pair.differs.items():
            key = name, _shown(ours), _shown(theirs)
            counts[key] = counts.get(key, 0) + 1
    if not counts:
        return [{"Fact": "none: engine, models, machine and settings are the same"}]
    return [
        {
            "Fact": f"`{name}`",
            "This run": literal(ours),
            "Against": literal(theirs),
            "Points": f"{count} of {len(pairs)}",
        }
        for (name, ours, theirs), count in sorted(counts.items())
    ]


def environment(ours: Stored, theirs: Stored) -> list[Row]:
    return _between(ours.environment, theirs.environment)


def configuration(ours: Stored, theirs: Stored) -> list[Row]:
    return _between(ours.config, theirs.config)


def _between(ours: dict[str, Any], theirs: dict[str, Any]) -> list[Row]:
    """The leaves that differ, by dotted key."""
    mine, its = dict(leaves(ours)), dict(leaves(theirs))
    names = sorted(mine.keys() | its.keys())
    return [
        {"Key": f"`{name}`", "This run": literal(_shown(mine.get(name))), "Against": literal(_shown(its.get(name)))}
        for name in names
        if name not in UNTOLD and mine.get(name) != its.get(name)
    ]


def _shown(value: Any) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
