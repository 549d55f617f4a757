"""Runs each of the tree's steps once, so that their kernels are compiled before the first request."""

from __future__ import annotations

from typing import Any

import torch

from ddbench.plugins.vllm.options import Options
from ddbench.plugins.vllm.state import TreeState


def warm_up(
    ops: Any,
    state: TreeState,
    options: Options,
    vocabulary: int,
    features: int,
    dtype: torch.dtype,
    caches: list[Any],
) -> None:
    """One made-up round of one row in slot 0. Its moves read and write the null block of ``caches`` alone.

    Args:
        ops: `torch_ops` or `kernels.ops`.
        vocabulary: width of the drafter's logits.
        features: width of the target's features that the drafter reads.
        dtype: of logits and features.
        caches: from ``ops.cache_table``.
    """
    device = state.tokens.device
    width = state.nodes + 1
    logits = torch.zeros(options.block - 1, vocabulary, dtype=dtype, device=device)
    log_probs, ids = ops.candidates(logits, options.candidates)
    state.row_next[:1] = 0
    ops.write_trees(state, options, log_probs[None], ids[None], state.row_next[:1])
    state.row_slot.fill_(-1)
    state.row_slot[:1] = 0
    state.row_drafts[:1] = state.nodes
    bounds = torch.tensor([0, width], dtype=torch.int32, device=device)
    positions = torch.zeros(width, dtype=torch.int64, device=device)
    ops.apply_trees(state, 1, bounds, positions, positions.int())
    emitted = torch.empty(1, width, dtype=torch.int32, device=device)
    choices = torch.zeros(width, dtype=torch.int64, device=device)
    ops.walk(state, 1, choices, bounds[1:], emitted)
    ops.walk(state, 1, choices, bounds[1:], emitted, bounds, positions)
    for cache in caches:
        ops.move_kv(state, 1, bounds, positions, cache)
    ops.gather_rows(state, 1, bounds, torch.zeros(width, features, dtype=dtype, device=device))
    state.row_slot.fill_(-1)
    state.row_drafts.fill_(0)
    state.row_next.fill_(-1)
