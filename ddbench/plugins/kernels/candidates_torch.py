"""The k best of long rows in plain torch, with an order among equals: the twin of `topk`."""

from __future__ import annotations

import torch
from torch import Tensor


def best(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``k`` largest entries of each row, best first, of equal ones the lower id.

    Returns:
        The entries, float32 ``[rows, k]``; their ids, int32 ``[rows, k]``; log-sum-exp of the rows, float32 ``[rows]``.
        A row of fewer than ``k`` entries gives all of them.
    """
    values = logits.float()
    k = min(k, values.shape[-1])
    top = values.topk(k, dim=-1)
    ids = top.indices.sort(dim=-1).values  # topk promises no order among equals: by id first, then stably by value
    ids = ids.gather(1, values.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices)
    last = top.values[:, -1:]
    left_out = (values == last).sum(-1) > (top.values == last).sum(-1)  # nor which of those equal to the last
    if bool(left_out.any()):
        ids[left_out] = values[left_out].sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return values.gather(1, ids), ids.to(torch.int32), values.logsumexp(dim=-1)


def candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` most probable tokens of each row: log-probabilities float32, ids int32, each ``[rows, k]``.

    Best first; of equal logits the lower id.
    """
    values, ids, lse = best(logits, k)
    return values - lse[:, None], ids
