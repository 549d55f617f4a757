"""Helpers of the tree tests: obvious definitions to compare with, and log-probabilities that provoke ties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ddbench.tree import PADDING, Tree, build_tree, build_tree_compiled, build_tree_heap
from ddbench.tree.build import build_prepared
from ddbench.tree.shape import Limits

PARTS = ("scores", "parents", "depths", "ranks")


def build_tree_without_looking(log_probs: Tensor, nodes: int, **limits: object) -> Tree:
    """The fixed sequence of operations that a GPU runs, on whatever device the input is."""
    defaults: dict[str, object] = {"width": None, "depth": None, "min_log_prob": None, "force_spine": False}
    checked = Limits.of(log_probs, nodes, **(defaults | limits))  # type: ignore[arg-type]
    return build_prepared(checked.prepare(log_probs), checked, look=False)


FORMS: dict[str, Callable[..., Tree]] = {
    "heap": build_tree_heap,
    "torch": build_tree,
    "torch, fixed": build_tree_without_looking,
    "compiled": build_tree_compiled,
}


def brute_force(
    log_probs: Tensor,
    nodes: int,
    width: int | None = None,
    depth: int | None = None,
    min_log_prob: float | None = None,
    force_spine: bool = False,
) -> Tree:
    """The definition: of all prefixes the best, by score and then by rank tuple; a forced spine first."""
    batch, drafted, k = log_probs.shape
    width, depth = min(k, width or k), depth or drafted
    scores = torch.full((batch, nodes), -math.inf)
    parents = torch.full((batch, nodes), PADDING)
    depths = torch.zeros((batch, nodes), dtype=torch.int64)
    ranks = torch.full((batch, nodes), -1)
    for b, table in enumerate(log_probs.float().numpy()):
        score: dict[tuple[int, ...], np.float32] = {(): np.float32(0)}
        for d in range(depth):
            for path in itertools.product(range(width), repeat=d + 1):
                with np.errstate(over="ignore"):
                    score[path] = score[path[:-1]] + table[d, path[-1]]
        real = {path: s for path, s in score.items() if path and s > -math.inf}
        spine = [path for path in real if not any(path)] if force_spine else []
        floor = -math.inf if min_log_prob is None else np.float32(min_log_prob)
        rest = [path for path in real if path not in spine and real[path] >= floor]
        chosen = [*sorted(spine, key=len), *sorted(rest, key=lambda path: (-real[path], path))][:nodes]
        for n, path in enumerate(chosen):
            scores[b, n], depths[b, n], ranks[b, n] = float(real[path]), len(path), path[-1]
            parents[b, n] = chosen.index(path[:-1]) if len(path) > 1 else -1
    return Tree(scores, parents, depths, ranks)


def paths(tree: Tree, row: int) -> list[tuple[int, ...]]:
    """Rank tuple of every node of one tree."""
    found: list[tuple[int, ...]] = []
    for parent, rank in zip(tree.parents[row].tolist(), tree.ranks[row].tolist(), strict=True):
        if parent != PADDING:
            found.append((*(found[parent] if parent >= 0 else ()), rank))
    return found


def assert_equal(found: Tree, expected: Tree, note: object = "") -> None:
    for part in PARTS:
        one, other = getattr(found, part), getattr(expected, part)
        assert one.dtype == other.dtype
        assert torch.equal(one, other), f"{part} differ {note}\n{one}\n{other}"


def draft(batch: int, depth: int, k: int, kind: str, seed: int) -> Tensor:
    """Sorted log-probabilities ``[batch, depth, k]``; most kinds are full of ties."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    spread = 0.2 + 6 * uniform(batch, depth, 1)
    smooth = (torch.randn(batch, depth, k, generator=generator) * spread).log_softmax(-1)
    log_probs = {
        "smooth": smooth,
        "halves": (smooth * 2).round() / 2,
        "whole": smooth.round(),
        "zero": torch.zeros_like(smooth),
        "absorbed": torch.where(uniform(batch, depth, k) < 0.5, -1e-8 * uniform(batch, depth, k), smooth),
        "certain": torch.where(uniform(batch, depth, 1) < 0.4, -1e-6 * uniform(batch, depth, k), smooth),
        "cut": torch.where(uniform(batch, depth, k) < 0.5, -torch.inf, smooth.round()),
        "huge": -1e38 * (3 * uniform(batch, depth, k)).round(),
    }[kind]
    return log_probs.sort(-1, descending=True).values


KINDS = ("smooth", "halves", "whole", "zero", "absorbed", "certain", "cut", "huge")
