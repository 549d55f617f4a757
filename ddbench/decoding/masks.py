"""Additive attention masks over a static cache whose rows differ in length: 0 shows a key, the lowest float hides."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask (True = visible) as an additive one."""
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, zero, torch.finfo(dtype).min)


def prompt_mask(positions: Tensor, dtype: torch.dtype) -> Tensor:
    """Causal mask [rows, 1, tokens, tokens] of prompts padded on the left; padding sees itself only.

    ``positions`` [rows, tokens] are negative for padding.
    """
    tokens = positions.shape[1]
    steps = torch.arange(tokens, device=positions.device)
    causal = steps[:, None] >= steps
    real = (positions >= 0)[:, None, :]
    itself = steps[:, None] == steps
    return additive((causal & real) | itself, dtype)[:, None]


def committed_mask(lengths: Tensor, kv_len: int, dtype: torch.dtype) -> Tensor:
    """[rows, 1, 1, kv_len]: the first ``lengths`` slots of each row are visible."""
    return additive(torch.arange(kv_len, device=lengths.device) < lengths[:, None], dtype)[:, None, None]


def tree_mask(ancestors: Tensor, lengths: Tensor, kv_len: int, dtype: torch.dtype) -> Tensor:
    """[rows, 1, tokens, kv_len]: the committed slots, and among the new ones (slots ``length + j``) the ancestors.

    ``ancestors`` [rows or 1, tokens, new] is boolean: may token ``i`` see the new slot ``j``?
    """
    rows = lengths.shape[0]
    tokens, new = ancestors.shape[1:]
    shown = torch.tensor([[[False, True]]], device=lengths.device).expand(ancestors.shape[0], tokens, 2)
    columns = additive(torch.cat((ancestors, shown), dim=-1), dtype).expand(rows, tokens, new + 2)
    offset = torch.arange(kv_len, device=lengths.device) - lengths[:, None]
    column = torch.where(offset < 0, new + 1, offset.clamp(max=new))
    return columns.gather(2, column[:, None, :].expand(rows, tokens, kv_len))[:, None]


@lru_cache(maxsize=64)
def chain_ancestors(tokens: int, device: torch.device) -> Tensor:
    """[1, tokens, tokens]: the ancestor mask of a chain, root first."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()[None]
