"""Several drafters of one target: which points are the same but for the drafter, and how their acceptance differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from reports.aggregate import Analysis
from reports.baselines import ACCEPTANCE_DIFFERENCE, SPEEDUP, paired
from reports.choose import labelled
from reports.frames import Stored, records
from reports.names import short_names
from reports.points import Point
from reports.statistics import NOTHING, Estimate

SHAPE = ("strategy", "width", "depth", "nodes", "force_spine", "min_log_prob")
ALIKE = ("scenario", "batch_size", *SHAPE, "fingerprint")  # what points must share that differ in the drafter alone


@dataclass(frozen=True)
class Checkpoint:
    """A drafter: its name, where it came from, and the hash of its weights and config (or its commit).

    ``same_as`` names an earlier checkpoint of the same hash.
    """

    name: str
    source: str
    revision: str | None
    same_as: str | None


@dataclass(frozen=True)
class Group:
    """Points that differ in their drafter alone, by the checkpoint's name, the reference first."""

    label: str  # strategy and shape
    scenario: str
    batch_size: int
    points: dict[str, Point]

    @cached_property
    def categories(self) -> list[str]:
        """Categories of the prompts that all of them finished, sorted."""
        found = [set(point.requests["category"].dropna()) for point in self.points.values()]
        return sorted(str(category) for category in set.intersection(*found))

    def prompts(self, category: str | None) -> list[str]:
        """Prompts of a category that all of them finished; None: of all categories."""
        found = []
        for point in self.points.values():
            rows = point.requests
            kept = rows if category is None else rows[rows["category"] == category]
            found.append(set(kept["prompt_id"]))
        return sorted(set.intersection(*found))

    def difference(self, name: str, other: str, category: str | None = None) -> Estimate:
        """Acceptance length of one checkpoint less that of another, paired by prompt."""
        pair = paired(self.points[name], self.points[other])
        if pair is None:
            return NOTHING
        kept = pair if category is None else pair.among(self.prompts(category))
        return kept.counted(ACCEPTANCE_DIFFERENCE)[0]

    def speed_ratio(self, name: str, other: str) -> Estimate:
        """Per-user decode tokens/s of one checkpoint over that of another, paired by prompt.

        No interval from one block: the two are measured one after the other, and prompts say nothing of a drift.
        """
        pair = paired(self.points[name], self.points[other])
        if pair is None:
            return NOTHING
        ratio = pair.timed(SPEEDUP)[0]
        return ratio if pair.values.shape[0] > 1 else ratio.without_bar("n = 1 block")


def checkpoints_of(stored: Stored) -> list[Checkpoint]:
    """The drafters of a run that compares several, in the order in which they were named; else an empty list.

    Of a run without names in its configuration, the ends of the sources that tell them apart are the names.
    """
    cells = stored.cells[stored.cells["drafter"].notna()]
    several = [group for _, group in cells.groupby("strategy", sort=False) if group["drafter"].nunique() > 1]
    if not several:
        return []
    compared = pd.concat(several).drop_duplicates("drafter")
    revisions = {str(row["drafter"]): row["drafter_revision"] for row in records(compared)}
    given = stored.config.get("drafters")
    named = {str(source): str(name) for name, source in given.items()} if isinstance(given, dict) else {}
    order = [source for source in named if source in revisions] + sorted(revisions.keys() - named.keys())
    names = short_names(order) | named
    found: list[Checkpoint] = []
    for source in order:
        revision = revisions[source]
        twins = [each.name for each in found if revision is not None and each.revision == revision]
        found.append(Checkpoint(names[source], source, revision, twins[0] if twins else None))
    return found


def groups_of(analysis: Analysis, checkpoints: Sequence[Checkpoint]) -> list[Group]:
    """What can be compared, in the order of the results: the same arm with two drafters or more, all of them measured.

    A point that is suspect, or that failed, is no evidence for or against a drafter and is left out.
    """
    frame = analysis.frame
    labels = labelled(frame.assign(drafter=None))["label"]
    names = {each.source: each.name for each in checkpoints}
    found: dict[tuple[Any, ...], dict[str, Point]] = {}
    titles: dict[tuple[Any, ...], str] = {}
    for point, row, label in zip(analysis.points, records(frame), labels, strict=True):
        drafter = row["drafter"]
        if row["status"] != "ok" or drafter not in names or not point.measured:
            continue
        key = tuple(row[name] for name in ALIKE)
        found.setdefault(key, {})[names[drafter]] = point
        titles.setdefault(key, str(label))
    order = [each.name for each in checkpoints]
    return [
        Group(titles[key], str(key[0]), int(key[1]), {name: points[name] for name in order if name in points})
        for key, points in found.items()
        if len(points) > 1
    ]


def smallest(groups: Sequence[Group]) -> list[Group]:
    """Those at the smallest batch size of their scenario: at temperature 0 acceptance hardly depends on it."""
    least: dict[str, int] = {}
    for group in groups:
        least[group.scenario] = min(group.batch_size, least.get(group.scenario, group.batch_size))
    return [group for group in groups if group.batch_size == least[group.scenario]]


def verdict(difference: Estimate) -> str:
    """``better``, ``worse`` or ``not distinguishable``, by whether the interval of the difference contains 0."""
    if difference.value is None:
        return "no prompt in common"
    if difference.low is None or difference.high is None:
        return f"no interval (n = {difference.n})"
    if not difference.excludes(0.0):
        return "not distinguishable"
    return "better" if difference.low > 0 else "worse"
