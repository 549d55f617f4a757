"""The starts of a run: a run folder may be gone on with, and each start may find another commit, package or machine.

``environment.json`` is of the last start; one of other contents that stood there before is ``environment-<n>.json``,
the oldest with n = 1 (:class:`experiments.store.RunFolder`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from reports.frames import Stored

# Differ between any two starts, or are told elsewhere, and are no conditions of a measurement.
UNTOLD = (
    "command",
    "started",
    "workload",
    "workloads",
    "prompt_tokens",
    "engine_warning",
    "engine_counting",
    "host_state",
    "host_warnings",
    "synthetic",
)


@dataclass(frozen=True)
class Start:
    """One start: ``number`` from 1 on, and what it found. ``begun`` is None where the start did not store it."""

    number: int
    environment: dict[str, Any]

    @property
    def begun(self) -> datetime | None:
        return _time(self.environment.get("started"))


def starts(stored: Stored) -> list[Start]:
    """All starts that stored an environment of their own, oldest first. A file that cannot be read is left out."""
    earlier = []
    for path in stored.run.glob("environment-*.json"):
        number = path.stem.rpartition("-")[2]
        if number.isdecimal():
            earlier.append((int(number), path))
    found = []
    for number, path in sorted(earlier):
        try:
            environment = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if isinstance(environment, dict):
            found.append(Start(number, environment))
    last = [Start(found[-1].number + 1 if found else 1, stored.environment)] if stored.environment else []
    return [*found, *last]


def changes(found: list[Start]) -> dict[str, list[Any]]:
    """What was not the same at all starts: dotted key to its value at each start, None where a start has none."""
    flat = [dict(leaves(start.environment)) for start in found]
    names = sorted({name for each in flat for name in each if name.split(".")[0] not in UNTOLD})
    told = {name: [each.get(name) for each in flat] for name in names}
    return {name: values for name, values in told.items() if any(value != values[0] for value in values)}


def start_of(found: list[Start], started: str | None) -> Start | None:
    """The start in which a cell that began at ``started`` was measured: the last one before it.

    None where some start did not store its time. Processes that work on one folder at once are not told apart.
    """
    if len(found) == 1:
        return found[0]
    time, begun = _time(started), [start.begun for start in found]
    if time is None or None in begun:
        return None
    return max((start for start in found if start.begun and start.begun <= time), key=_begun, default=None)


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings by dotted key, in sorted order; lists stay whole."""
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key in sorted(value, key=str):
        yield from leaves(value[key], f"{prefix}.{key}" if prefix else str(key))


def _begun(start: Start) -> tuple[datetime, int]:
    assert start.begun is not None
    return start.begun, start.number


def _time(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
