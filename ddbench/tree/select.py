"""Sorting and selecting along rows: torch on a GPU; on a CPU numpy's vector instructions, many times as fast there.

Scores are at most 0, may be -inf, and their zeros are negative: so all have the sign bit, and as whole numbers their
float32 bits ascend as the scores descend. A score and an index make one int64 to sort by.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LOW, _HIGH = (0, 1) if sys.byteorder == "little" else (1, 0)  # halves of an int64


def best_sums(
    above: Tensor, steps: Tensor, rows: Tensor, columns: Tensor, labels: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of ``above[rows] + steps[columns]``, descending, equal ones in any order, and their labels.

    Args:
        above, steps: ``[batch, n]`` and ``[batch, m]``, at most 0.
        rows, columns, labels: ``[pairs]``; labels are whole numbers below 2 ** 31.
    """
    if not above.is_cpu:
        values, index = (above.index_select(1, rows) + steps.index_select(1, columns)).topk(count, dim=1)
        return values, labels[index]
    pairs = torch.empty(above.shape[0], rows.shape[0], 2, dtype=torch.int32)
    pairs[:, :, _LOW] = labels
    torch.add(above.index_select(1, rows), steps.index_select(1, columns), out=pairs.view(torch.float32)[:, :, _HIGH])
    keys = pairs.view(torch.int64)[:, :, 0].numpy()
    if rows.shape[0] > max(512, 2 * count):
        keys.partition(count - 1, axis=1)
        keys = keys[:, :count].copy()
    keys.sort(axis=1)
    chosen = torch.from_numpy(keys[:, :count])
    return chosen.view(torch.float32)[:, _HIGH::2], chosen.view(torch.int32)[:, _LOW::2]


def best_scores(scores: Tensor, count: int) -> Tensor:
    """The ``count`` largest of every row ``[batch, n]``, descending."""
    if not scores.is_cpu:
        return scores.topk(count, dim=1).values
    return torch.from_numpy(np.sort(scores.numpy(), axis=1)).flip(1)[:, :count]


def kth_best(scores: Tensor, k: int) -> Tensor:
    """The k-th largest of every row, ``[batch, 1]``."""
    if not scores.is_cpu:
        return scores.topk(k, dim=1, sorted=False).values.amin(1, keepdim=True)
    costs = (-scores).numpy()  # the k-th of few from below: from above, numpy is slow where many are -inf
    return -torch.from_numpy(np.partition(costs, k - 1, axis=1)[:, k - 1 : k])


def descending(scores: Tensor) -> Tensor:
    """Indices that sort every row from the largest score down, equal ones by index."""
    if not scores.is_cpu:
        return scores.sort(dim=1, descending=True, stable=True).indices
    return torch.from_numpy(np.sort(_keys(scores), axis=1)) & 0xFFFFFFFF


def ascending(keys: Tensor) -> Tensor:
    """Indices that sort every row of int64 keys, equal ones in any order."""
    if not keys.is_cpu:
        return keys.argsort(dim=1)
    return torch.from_numpy(np.argsort(keys.numpy(), axis=1))


def _keys(scores: Tensor) -> np.ndarray[Any, Any]:
    bits = scores.view(torch.int32).to(torch.int64)
    keys: np.ndarray[Any, Any] = ((bits << 32) | torch.arange(scores.shape[1])).numpy()
    return keys
