"""The obvious build: a heap over prefixes, one sequence after another. The twin that the fast forms must equal.

Algorithm 1 of the DDTree paper, but for two things: scores are float32 sums from the root down (the paper's code goes
from a node to its sibling by subtracting and adding, which rounds differently), and `build_tree`'s limits are added.
"""

from __future__ import annotations

import heapq
import math

import torch
from torch import Tensor

from ddbench.tree.shape import PADDING, ROOT, Limits, Tree, float32

Node = tuple[float, int, tuple[int, ...]]  # score, parent, ranks


def build_tree_heap(
    log_probs: Tensor,
    nodes: int,
    width: int | None = None,
    depth: int | None = None,
    min_log_prob: float | None = None,
    force_spine: bool = False,
) -> Tree:
    """As `ddbench.tree.build_tree`, on the host and slow."""
    limits = Limits.of(log_probs, nodes, width, depth, min_log_prob, force_spine)
    rows = [_best_first(row, limits) for row in limits.prepare(log_probs.cpu()).tolist()]
    shape = (len(rows), nodes)
    scores = torch.full(shape, -math.inf)
    parents = torch.full(shape, PADDING)
    depths = torch.zeros(shape, dtype=torch.int64)
    ranks = torch.full(shape, -1)
    for b, row in enumerate(rows):
        for n, (score, parent, path) in enumerate(row):
            scores[b, n], parents[b, n], depths[b, n], ranks[b, n] = score, parent, len(path), path[-1]
    return Tree(*(part.to(log_probs.device) for part in (scores, parents, depths, ranks)))


def _add(score: float, log_prob: float) -> float:
    """The float32 sum of two float32 numbers (a double holds enough digits that rounding twice does no harm)."""
    return float32(score + log_prob)


def _best_first(log_probs: list[list[float]], limits: Limits) -> list[Node]:
    tree: list[Node] = []
    index: dict[tuple[int, ...], int] = {(): ROOT}

    def add(score: float, path: tuple[int, ...]) -> None:
        index[path] = len(tree)
        tree.append((score, index[path[:-1]], path))

    if limits.force_spine:
        score = 0.0
        for d in range(limits.depth):
            score = _add(score, log_probs[d][0])
            if score > -math.inf:
                add(score, (0,) * (d + 1))

    # Entries sort by score, then by rank tuple. Every prefix is pushed once: by its elder sibling, or by its parent
    # when it is the eldest. Both stand before it in the order, so that the heap always holds the best prefix not yet
    # taken.
    heap: list[tuple[float, tuple[int, ...], float]] = [(-_add(0.0, log_probs[0][0]), (0,), 0.0)]
    while heap and len(tree) < limits.nodes:
        cost, path, above = heapq.heappop(heap)
        score, rank, d = -cost, path[-1], len(path)
        if score == -math.inf or score < limits.floor:
            break
        if path not in index:
            add(score, path)
        if rank + 1 < limits.width:
            heapq.heappush(heap, (-_add(above, log_probs[d - 1][rank + 1]), (*path[:-1], rank + 1), above))
        if d < limits.depth:
            heapq.heappush(heap, (-_add(score, log_probs[d][0]), (*path, 0), score))
    return tree
