"""Could rounding have made a live round part from its replay? What the drafter's scores would have had to move for it.

Two trees of one shape hold the same path down to different depths only where the path's node lies near an edge that one
of the two draws otherwise: the last node of the budget, or the last candidate of a width. With every log-probability
moved by no more than d, a node at depth n moves by n x d and so does each node that it is weighed against, and two
candidates of one level move by 2 d against each other. So the gap that was recorded there says how large d must have
been at least, and a drift that is smaller explains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ddbench.decoding import Strategy
from ddbench.tree import build_tree_heap

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
INFINITE = float("inf")


@dataclass(frozen=True)
class _Edge:
    """Of a recorded tree: the lowest score that its budget let in (a forced spine apart; infinite where it let in no
    other), the best that it left out (-inf: none, the tree is whole), and its deepest node's depth."""

    inside: float
    left: float
    deepest: int


def least_drift(strategy: Strategy, log_probs: Floats, ranks: Ints, live: int, replayed: int) -> float:
    """Nats by which one candidate's score must have moved at least, for ``live`` accepted tokens where the recorded
    scores give ``replayed``; infinite where no move of scores does it.

    Args:
        log_probs: ``[depth, k]`` recorded of the round, sorted.
        ranks: ``[depth]`` of the text's next tokens among them; -1: further down, or not known.
    """
    deep = max(live, replayed)
    if live == replayed or deep > len(log_probs):
        return 0.0 if live == replayed else INFINITE
    if strategy.name == "dflash":
        strategy = Strategy("ddtree", 1, strategy.depth, strategy.depth or len(log_probs))
    known = np.where(ranks < 0, log_probs.shape[1] - 1, ranks)  # a candidate further down has at most the last's score
    edge, needed = _edge(strategy, log_probs), _entering if live > replayed else _leaving
    steps = range(min(live, replayed) + 1, deep + 1)
    return max(needed(strategy, log_probs[:depth], known[:depth], edge) for depth in steps)


def _entering(strategy: Strategy, log_probs: Floats, ranks: Ints, edge: _Edge) -> float:
    """Of a path that is not in the recorded tree: every level must come within the width, its score to the edge."""
    own, width = _own(log_probs, ranks), strategy.width or log_probs.shape[1]
    within = max(0.0, float((log_probs[:, width - 1] - own).max())) / 2
    whole = edge.left == -INFINITE
    by_score = 0.0 if whole else max(0.0, edge.inside - float(own.sum())) / (len(own) + edge.deepest)
    found = max(within, by_score)
    if strategy.force_spine:  # or become the spine
        found = min(found, max(0.0, float((log_probs[:, 0] - own).max())) / 2)
    return found


def _leaving(strategy: Strategy, log_probs: Floats, ranks: Ints, edge: _Edge) -> float:
    """Of a path in the recorded tree: a level must fall out of the width, or its score below one that was left out.

    Of the nodes that came in its stead one has a parent in the recorded tree: it is at most one deeper than that tree.
    """
    own, width, k = _own(log_probs, ranks), strategy.width or log_probs.shape[1], log_probs.shape[1]
    out = max(0.0, float((own - log_probs[:, width]).min())) / 2 if width < k else INFINITE
    by_score = max(0.0, float(own.sum()) - edge.left) / (len(own) + edge.deepest + 1)
    found = min(out, by_score)
    if strategy.force_spine and not ranks.any() and k > 1:  # the spine is not judged by its score: it must end first
        found = max(found, float((log_probs[:, 0] - log_probs[:, 1]).min()) / 2)
    return found


def _own(log_probs: Floats, ranks: Ints) -> Floats:
    found: Floats = log_probs[np.arange(len(ranks)), ranks].astype(np.float64)
    return found


def _edge(strategy: Strategy, log_probs: Floats) -> _Edge:
    """From a tree of one node more: the first of its nodes are the tree."""
    nodes, depth = strategy.nodes or len(log_probs), strategy.depth or len(log_probs)
    scores = torch.from_numpy(np.ascontiguousarray(log_probs))[None].clamp(max=0.0)
    tree = build_tree_heap(scores, nodes + 1, strategy.width, strategy.depth, None, strategy.force_spine)
    count = int(tree.counts()[0])
    spine = min(depth, nodes) if strategy.force_spine else 0
    inside = float(tree.scores[0, nodes - 1]) if count >= nodes > spine else INFINITE
    left = float(tree.scores[0, nodes]) if count > nodes else -INFINITE
    return _Edge(inside, left, int(tree.depths[0, : min(nodes, count)].max()))
