"""The trees of one width: what they accept and draft at every anchor, at any depth, budget and floor, by lookup.

Budgets are nested, so that one count of the nodes before each token of the true path answers for all budgets; counted
by depth, it answers for all depths too. A probability floor cuts the order short, and a forced spine moves to its
front: neither changes what comes before what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.replay.count import count_all, count_before
from ddbench.replay.trace import TraceSet
from ddbench.tree.shape import float32

Floats32 = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]

_CHUNK = 4096  # anchors grown at once: bounds the memory at about this many times the largest budget


@dataclass(frozen=True)
class Family:
    """All trees whose nodes have at most ``width`` children, up to a budget of ``cap``.

    Attributes:
        before: ``[anchors, depth, depth]``: [a, j - 1, d - 1] nodes come before the first j tokens of the true path in
            the tree of depth d >= j; ``cap`` stands for that many or more, or for a path that no tree of the width has.
        path: ``[anchors, depth]`` scores of those first j tokens, ``-inf`` where no tree of the width has them.
        spine: ``[anchors, depth]`` scores of the drafter's own chain, rank 0 all along.
        on_spine: ``[anchors, depth]``, whether the first j tokens are that chain's.
    """

    width: int
    cap: int
    before: Ints
    path: Floats32
    spine: Floats32
    on_spine: NDArray[np.bool_]
    log_probs: Floats32 = field(repr=False)
    _totals: dict[float, Ints] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, traces: TraceSet, width: int | None, cap: int) -> Family:
        """Counts for all anchors; ``width`` None is no limit."""
        most = min(traces.k, traces.k if width is None else width)
        inside = np.logical_and.accumulate((traces.ranks >= 0) & (traces.ranks < most), axis=1)
        chosen = np.take_along_axis(traces.log_probs, np.maximum(traces.ranks, 0)[:, :, None], axis=2)[:, :, 0]
        path = np.add.accumulate(np.where(inside, chosen, np.float32(-np.inf)), axis=1)
        before = np.full((traces.anchors, traces.depth, traces.depth), cap, dtype=np.int16)
        for start in range(0, traces.anchors, _CHUNK):
            part = slice(start, start + _CHUNK)
            _fill(before[part], traces.log_probs[part], traces.ranks[part], path[part], most, cap)
        spine = np.add.accumulate(traces.log_probs[:, :, 0], axis=1)
        on_spine = np.logical_and.accumulate(traces.ranks == 0, axis=1)
        return cls(most, cap, before, path, spine, on_spine, traces.log_probs)

    def accepted(self, depth: int, nodes: Sequence[int], floor: float | None, spine: bool) -> Ints:
        """Tokens of the true path that each budget's tree holds: int8 ``[budgets, anchors]``."""
        least = -np.inf if floor is None else np.float32(float32(floor))
        found = np.zeros((len(nodes), len(self.path)), dtype=np.int8)
        budgets = np.asarray(nodes)[:, None]
        spine_nodes = self._spine_nodes(depth)
        for j in range(depth):
            place = self.before[:, j, depth - 1].astype(np.int64)
            score = self.path[:, j]
            held = place < budgets if not spine else self._after_spine(place, score, depth) + spine_nodes < budgets
            held = held & (score >= least) & (score > -np.inf)
            if spine:
                held |= self.on_spine[:, j] & (score > -np.inf)
            found += held
        return found

    def drafted(self, depth: int, nodes: Sequence[int], floor: float | None, spine: bool) -> Ints:
        """Nodes of each budget's tree: ``[budgets, anchors]``."""
        least = -np.inf if floor is None else float32(floor)
        total = self._total(least)[:, depth - 1]
        if spine:
            chain = self.spine[:, :depth]
            total = total + ((chain > -np.inf) & (chain < least)).sum(1)  # exempt from the floor
        found: Ints = np.minimum(np.asarray(nodes)[:, None], total)
        return found

    def _total(self, floor: float) -> Ints:
        """Nodes with a score of at least ``floor`` by depth, ``[anchors, depth]``, at most ``cap``."""
        if floor not in self._totals:
            parts = [self.log_probs[i : i + _CHUNK] for i in range(0, len(self.log_probs), _CHUNK)]
            self._totals[floor] = np.concatenate([count_all(part, floor, self.width, self.cap) for part in parts])
        return self._totals[floor]

    def _spine_nodes(self, depth: int) -> Ints:
        counts: Ints = (self.spine[:, :depth] > -np.inf).sum(1)
        return counts

    def _after_spine(self, place: Ints, score: Floats32, depth: int) -> Ints:
        """Nodes before a path that are not on the spine. A spine node of equal score has the smaller rank tuple."""
        ahead = (self.spine[:, :depth] >= score[:, None]) & (self.spine[:, :depth] > -np.inf)
        found: Ints = place - ahead.sum(1)
        # `cap` or more nodes before it: out of every tree, wherever the spine is.
        return np.where(place >= self.cap, self.cap, found)


def _fill(before: Ints, log_probs: Floats32, ranks: Ints, path: Floats32, width: int, cap: int) -> None:
    """Counts into ``before`` of some anchors. A path that is out at its own depth is out for good, at any length."""
    rows = np.arange(len(before))
    for j in range(before.shape[1]):
        rows = rows[path[rows, j] > -np.inf]
        if not len(rows):
            return
        counts = count_before(log_probs, rows, ranks[rows, : j + 1], width, cap)
        before[rows, j] = counts
        rows = rows[counts[:, j] < cap]
