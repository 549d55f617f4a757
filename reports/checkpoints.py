"""Several drafters of one target: which points are the same but for the drafter, and how their acceptance differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd

from reports.aggregate import Analysis
from reports.baselines import ACCEPTANCE_DIFFERENCE, SPEEDUP, paired
from reports.choose import labelled
from reports.frames import Stored, records
from reports.measures import ratios
from reports.names import given_names, short_names
from reports.points import Point
from reports.statistics import NOTHING, Estimate

ACCEPTANCE = "acceptance_length"
SHAPE = ("strategy", "width", "depth", "nodes", "force_spine", "min_log_prob", "policy")
LEAST_PROMPTS = 3  # below which an interval over prompts says more of its formula than of the drafters
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

    def length(self, name: str, category: str | None = None) -> Estimate:
        """Acceptance length of one checkpoint on its prompts, or on those of a category that all finished.

        The interval ends at what a round can emit, 1 to depth + 1; it is left out below :data:`LEAST_PROMPTS`.
        """
        sums = self.points[name].sums
        kept = sums if category is None else sums.among(self.prompts(category))
        found = ratios(kept, ACCEPTANCE)
        low, high = found[f"{ACCEPTANCE}_low"], found[f"{ACCEPTANCE}_high"]
        depth = self.depth
        return _bounded(
            Estimate(found[ACCEPTANCE], low, high, len(kept.prompts)), 1.0, None if depth is None else depth + 1.0
        )

    def difference(self, name: str, other: str, category: str | None = None) -> Estimate:
        """Acceptance length of one checkpoint less that of another, paired by prompt; bounded as :meth:`length` is."""
        pair = paired(self.points[name], self.points[other])
        if pair is None:
            return NOTHING
        kept = pair if category is None else pair.among(self.prompts(category))
        depth = self.depth
        most = None if depth is None else float(depth)
        return _bounded(kept.counted(ACCEPTANCE_DIFFERENCE)[0], None if most is None else -most, most)

    @property
    def depth(self) -> int | None:
        """Most drafted tokens that a round can accept, where the arm says."""
        value = next(iter(self.points.values())).row["depth"]
        return None if value is None else int(value)

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
    named = given_names(stored.config)
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
    if difference.n == 1:
        return "one prompt"
    if difference.low is None or difference.high is None:
        return f"no interval (n = {difference.n})"
    if not difference.excludes(0.0):
        return "not distinguishable"
    return "better" if difference.low > 0 else "worse"


def _bounded(estimate: Estimate, least: float | None, most: float | None) -> Estimate:
    """Without an interval of too few prompts; else with one that does not leave what is possible."""
    if estimate.low is None or estimate.high is None:
        return estimate
    if estimate.n < LEAST_PROMPTS:
        return estimate.without_bar(f"n = {estimate.n} prompts")
    low = estimate.low if least is None else max(estimate.low, least)
    high = estimate.high if most is None else min(estimate.high, most)
    return replace(estimate, low=low, high=high)
