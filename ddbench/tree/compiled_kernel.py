"""The numba kernel of `compiled.py`. Importing this module needs numba.

A heap entry is (score, parent, rank, depth), a prefix not yet taken; it sorts by score, then by rank tuple, which is
read off the tree only when two scores are equal.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

NO_NODE = -2

Array = np.ndarray[Any, Any]


def _jit(function: Any) -> Any:
    """Compiled by numba; the machine code is cached where the package's folder or the user's cache can be written."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # neither can: compile anew in every process
        return numba.njit(function)


@_jit
def _first_by_rank(a: int, b: int, parent: Array, rank: Array, depth: Array, parents: Array, ranks: Array) -> bool:
    """Whether entry a has the smaller rank tuple. Read from the ends: the last difference found decides."""
    node_a, node_b, rank_a, rank_b = parent[a], parent[b], rank[a], rank[b]
    depth_a, depth_b = depth[a], depth[b]
    smaller = depth_a < depth_b  # if one is the beginning of the other
    while depth_a > depth_b:
        rank_a, node_a, depth_a = ranks[node_a], parents[node_a], depth_a - 1
    while depth_b > depth_a:
        rank_b, node_b, depth_b = ranks[node_b], parents[node_b], depth_b - 1
    while True:
        if rank_a != rank_b:
            smaller = rank_a < rank_b
        if node_a == node_b:  # the same path from here up
            return bool(smaller)
        rank_a, node_a = ranks[node_a], parents[node_a]
        rank_b, node_b = ranks[node_b], parents[node_b]


@_jit
def _build_row(
    lp: Array, floor: float, force_spine: bool, scores: Array, parents: Array, depths: Array, ranks: Array
) -> None:
    """One tree into ``scores``, ``parents``, ``depths``, ``ranks``, each ``[nodes]`` and filled with padding before."""
    levels, width = lp.shape
    nodes = scores.shape[0]
    room = 2 * (nodes + levels) + 2
    above = np.empty(room, np.float32)  # score of an entry's parent
    parent, rank, depth = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int32)
    heap, key = np.empty(room, np.int32), np.empty(room, np.float32)  # entries and their scores

    count = 0
    if force_spine:
        total = np.float32(0.0)
        for d in range(levels):
            total = np.float32(total + lp[d, 0])
            if total == -np.inf:
                break
            scores[d], parents[d], depths[d], ranks[d] = total + np.float32(0.0), d - 1, d + 1, 0
            count += 1
    spine = count

    made, size = 1, 1
    heap[0], key[0], above[0], parent[0], rank[0], depth[0] = 0, lp[0, 0], np.float32(0.0), -1, 0, 1
    while size > 0 and count < nodes:
        entry, s = heap[0], key[0]
        size -= 1
        moved, moved_key, hole = heap[size], key[size], 0
        while True:
            child = 2 * hole + 1
            if child >= size:
                break
            if child + 1 < size and (
                key[child + 1] > key[child]
                or (
                    key[child + 1] == key[child]
                    and _first_by_rank(heap[child + 1], heap[child], parent, rank, depth, parents, ranks)
                )
            ):
                child += 1
            if not (
                key[child] > moved_key
                or (key[child] == moved_key and _first_by_rank(heap[child], moved, parent, rank, depth, parents, ranks))
            ):
                break
            heap[hole], key[hole] = heap[child], key[child]
            hole = child
        heap[hole], key[hole] = moved, moved_key

        d, node = depth[entry], count
        if s == -np.inf or s < floor:
            return
        if rank[entry] == 0 and d <= spine and parent[entry] == d - 2:
            node = d - 1  # a spine node, in the tree already
        else:
            scores[node] = s + np.float32(0.0)  # no negative zero
            parents[node], depths[node], ranks[node] = parent[entry], d, rank[entry]
            count += 1

        for kind in range(2):
            if kind == 0 and d < levels:  # first child
                above[made], parent[made], rank[made], depth[made] = s, node, 0, d + 1
            elif kind == 1 and rank[entry] + 1 < width:  # next sibling
                above[made], parent[made], rank[made], depth[made] = above[entry], parent[entry], rank[entry] + 1, d
            else:
                continue
            made_key = np.float32(above[made] + lp[depth[made] - 1, rank[made]])
            hole = size
            size += 1
            while hole > 0:
                up = (hole - 1) // 2
                if not (
                    made_key > key[up]
                    or (made_key == key[up] and _first_by_rank(made, heap[up], parent, rank, depth, parents, ranks))
                ):
                    break
                heap[hole], key[hole] = heap[up], key[up]
                hole = up
            heap[hole], key[hole] = made, made_key
            made += 1


@_jit
def build(lp: Array, nodes: int, floor: float, force_spine: bool) -> tuple[Array, Array, Array, Array]:
    """Trees of ``lp``, float32 [batch, depth, width]: scores, parents, depths, ranks, each [batch, nodes]."""
    batch = lp.shape[0]
    scores = np.full((batch, nodes), -np.inf, np.float32)
    parents = np.full((batch, nodes), NO_NODE, np.int64)
    depths = np.zeros((batch, nodes), np.int64)
    ranks = np.full((batch, nodes), -1, np.int64)
    for b in range(batch):
        _build_row(lp[b], floor, force_spine, scores[b], parents[b], depths[b], ranks[b])
    return scores, parents, depths, ranks
