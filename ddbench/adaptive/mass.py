"""From a nested build to what a policy is told: the drafter's probability in every candidate, by depth and by chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddbench.adaptive.policy import ON, Candidates
from ddbench.tree import Tree

Floats = NDArray[np.float64]
Array = NDArray[Any]


def on_spine(tree: Tree, depth_limit: int | None = None) -> Tensor:
    """Which nodes are on the drafter's own chain (rank 0 from the root down): bool ``[batch, nodes]``.

    ``depth_limit``: no tree is deeper; on a GPU it bounds the kernels that are started.
    """
    first = tree.ranks == 0
    spine = first & (tree.depths == 1)
    parents = tree.parents.clamp(min=0)
    for depth in range(2, (depth_limit or tree.scores.shape[1]) + 1):
        below = first & (tree.depths == depth) & spine.gather(1, parents)
        if tree.scores.device.type == "cpu" and not bool(below.any()):
            break
        spine = spine | below
    return spine


def expectation(
    scores: Array, depths: Array, spine: Array, chain: Array, candidates: Candidates, factors: Floats
) -> tuple[Floats, Floats]:
    """``expected`` and ``mass`` of an :class:`ddbench.adaptive.policy.Offer`, on the host, in float64.

    Args:
        scores, depths, spine: ``[rows, nodes]`` of one build of at least ``candidates.most`` nodes, best first: log-
            probabilities from the root down (padding ``-inf``), depths (padding 0), nodes on the drafter's own chain.
        chain: ``[rows, depth]`` the chain's log-probabilities from the root down; its second axis is the whole depth.
        candidates: what may be chosen.
        factors: ``[2, depth]`` of the control.
    """
    rows, depth = chain.shape
    count, most = len(candidates.trees), candidates.most
    parts = []
    if count:
        band = np.searchsorted(np.asarray(candidates.trees), np.arange(most), side="right")  # first tree with the node
        row = np.arange(rows)[:, None] * count
        place = ((row + band) * 2 + spine[:, :most]) * depth + np.maximum(depths[:, :most], 1) - 1
        chance = np.exp(scores[:, :most].astype(np.float64))
        sums = np.bincount(place.ravel(), weights=chance.ravel(), minlength=rows * count * 2 * depth)
        parts.append(sums.reshape(rows, count, 2, depth).cumsum(axis=1))
    if candidates.chains:
        own = np.zeros((rows, len(candidates.chains), 2, depth))
        inside = np.arange(1, depth + 1) <= np.asarray(candidates.chains)[:, None]
        own[:, :, ON] = np.exp(chain.astype(np.float64))[:, None] * inside
        parts.append(own)
    each = np.concatenate(parts, axis=1)
    return (each * factors).sum(axis=(2, 3)), each.sum(axis=0)


def expectation_on_device(
    scores: Tensor, depths: Tensor, spine: Tensor, chain: Tensor, candidates: Candidates, factors: Tensor
) -> tuple[Tensor, Tensor]:
    """The same in float32 on the build's device, without waiting for it; sums in another order.

    Memory: rows x nodes x 2 x depth numbers. ``factors`` is a tensor ``[2, depth]`` there.
    """
    depth, most, device = chain.shape[1], candidates.most, scores.device
    steps = torch.arange(1, depth + 1, device=device)
    parts = []
    if candidates.trees:
        chance = scores[:, :most].exp()[..., None] * (depths[:, :most, None] == steps)  # [rows, nodes, depth]
        on = spine[:, :most, None]
        nested = torch.stack((chance.masked_fill(on, 0.0), chance.masked_fill(~on, 0.0)), dim=2).cumsum(dim=1)
        parts.append(nested[:, torch.tensor(candidates.trees, device=device) - 1])
    if candidates.chains:
        inside = steps <= torch.tensor(candidates.chains, device=device)[:, None]
        own = chain.exp()[:, None] * inside
        parts.append(torch.stack((torch.zeros_like(own), own), dim=2))
    each = torch.cat(parts, dim=1)
    return (each * factors).sum(dim=(2, 3)), each.sum(dim=0)
