"""The published build, frozen: what `tree_build.py` measures against. Do not make it faster.

Written from the description of algorithm 1 in the DDTree paper and of its public code: log-probabilities go to the host
as numpy arrays, then a Python heap builds one sequence's tree after another in double precision, a sibling's score from
its elder's by taking off one log-probability and adding the next. Only what makes the tree is here: no masks, no token
ids, no child maps, none of which would make it faster.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch


def heap_baseline(log_probs: torch.Tensor, nodes: int) -> list[tuple[list[float], list[int], list[int], list[int]]]:
    """Scores, parents (-1: the root), depths and ranks of each tree of ``log_probs``, ``[batch, depth, k]``."""
    host = log_probs.float().cpu().numpy()
    return [_build(host[b], nodes) for b in range(host.shape[0])]


def _build(log_probs: np.ndarray, nodes: int) -> tuple[list[float], list[int], list[int], list[int]]:
    depth_limit, k = log_probs.shape
    scores: list[float] = []
    parents: list[int] = []
    depths: list[int] = []
    ranks: list[int] = []
    first = float(log_probs[0, 0])
    heap: list[tuple[float, tuple[int, ...], int, int, int, float]] = [(-first, (0,), -1, 1, 0, first)]
    while heap and len(scores) < nodes:
        _, path, parent, depth, rank, score = heapq.heappop(heap)
        node = len(scores)
        scores.append(score)
        parents.append(parent)
        depths.append(depth)
        ranks.append(rank)
        if rank + 1 < k:
            row = depth - 1
            sibling = score - float(log_probs[row, rank]) + float(log_probs[row, rank + 1])
            heapq.heappush(heap, (-sibling, (*path[:-1], rank + 1), parent, depth, rank + 1, sibling))
        if depth < depth_limit:
            child = score + float(log_probs[depth, 0])
            heapq.heappush(heap, (-child, (*path, 0), node, depth + 1, 0, child))
    return scores, parents, depths, ranks
