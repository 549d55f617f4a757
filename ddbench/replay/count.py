"""How many nodes come before a given one: the whole of replay, since the tree of budget B holds a node if fewer than B
come before it.

Nodes are ordered as `ddbench.tree` orders them: by score, the float32 sum of log-probabilities from the root down;
equal scores by the lexicographically smaller rank tuple. Scores never rise with depth, so all ancestors of a node that
comes before X come before X themselves: the nodes before X are found by growing from the root, a level at a time, and
leaving out what does not. No tree is built and nothing is sorted. The children of a node that qualify have the first
ranks, so their number is found by bisection. All anchors grow at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats32 = NDArray[np.float32]
Ints = NDArray[np.integer[Any]]

# Where a node's rank tuple stands to X's: before it, a beginning of it, after it.
_BEFORE, _ON, _AFTER = -1, 0, 1


def count_before(log_probs: Floats32, rows: Ints, path: Ints, width: int, cap: int) -> Ints:
    """Nodes of depth <= d that come before the node X with ranks ``path``: ``[n, depth]``, d from 1, at most ``cap``.

    Args:
        log_probs: ``[anchors, depth, k]``, each position sorted from the best down, at most 0.
        rows: ``[n]`` anchors.
        path: ``[n, level]`` ranks of X, all below ``width``; its score is a number.
        width: most children of a node.
        cap: counting stops there: the largest budget that is asked about.
    """
    level = path.shape[1]
    steps = log_probs[rows[:, None], np.arange(level), path]
    score = np.add.accumulate(steps, axis=1)[:, -1]
    return _count(log_probs, rows, score, path, width, cap)


def count_all(log_probs: Floats32, floor: float, width: int, cap: int) -> Ints:
    """Nodes of depth <= d with a score of at least ``floor``: ``[anchors, depth]``, at most ``cap``."""
    rows = np.arange(log_probs.shape[0])
    least = np.float32(max(floor, float(np.finfo(np.float32).min)))  # -inf is no score of a node
    return _count(log_probs, rows, np.full(len(rows), least), None, width, cap)


def _count(log_probs: Floats32, rows: Ints, score: Floats32, path: Ints | None, width: int, cap: int) -> Ints:
    depth, k = log_probs.shape[1:]
    flat = log_probs.reshape(-1)
    width = min(width, k)
    found = np.full((len(rows), depth), cap, dtype=np.int64)
    total = np.zeros(len(rows), dtype=np.int64)
    better = np.nextafter(score, np.float32(np.inf))  # least score that is better

    # The nodes of a level that qualify; at first the root.
    owner = np.arange(len(rows))
    sums = np.zeros(len(rows), dtype=np.float32)
    side = np.full(len(rows), _BEFORE if path is None else _ON, dtype=np.int8)
    for d in range(depth):
        base = (rows[owner] * depth + d) * k
        bound = np.where(side == _BEFORE, score[owner], better[owner])
        count = _qualifying(flat, base, sums, bound, width)
        on = np.flatnonzero(side == _ON)
        if path is not None and len(on):
            # X's own ancestor, and the siblings before it, qualify; of those after it, the better ones.
            count[on] = np.maximum(count[on], path[owner[on], d] + 1)
        total += np.bincount(owner, weights=count, minlength=len(rows)).astype(np.int64)
        last = path is not None and d + 1 == path.shape[1]
        if last:
            total[owner[on]] -= 1  # X itself
        open_ = total < cap
        found[open_, d] = total[open_]
        if d + 1 == depth or not len(owner):
            found[open_, d:] = total[open_, None]
            break
        count = np.where(open_[owner], count, 0)
        parent = np.repeat(np.arange(len(owner)), count)
        rank = np.arange(len(parent)) - np.repeat(count.cumsum() - count, count)
        sums = sums[parent] + flat[base[parent] + rank]
        own = side[parent]
        owner = owner[parent]
        if path is not None and len(on):
            below = np.flatnonzero(own == _ON)
            own[below] = np.sign(rank[below] - path[owner[below], d])
            if last:  # below X nothing is better than X, and what equals it comes later
                kept = own != _ON
                owner, sums, own = owner[kept], sums[kept], own[kept]
        side = own
    return found


def _qualifying(flat: Floats32, base: Ints, sums: Floats32, bound: Floats32, width: int) -> Ints:
    """How many of the ``width`` children of each node have a score of at least its bound: they are the first ones."""
    low, high = np.zeros(len(base), dtype=np.int64), np.full(len(base), width, dtype=np.int64)
    for _ in range(width.bit_length()):
        middle = (low + high) >> 1
        inside = low < high
        passes = inside & (sums + flat[base + np.minimum(middle, width - 1)] >= bound)
        low = np.where(passes, middle + 1, low)
        high = np.where(inside & ~passes, middle, high)
    return low
