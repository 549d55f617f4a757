"""The warm-up round leaves nothing behind that a request could meet."""

from __future__ import annotations

import torch

from ddbench.plugins.vllm import torch_ops
from ddbench.plugins.vllm.options import Options
from ddbench.plugins.vllm.state import TreeState
from ddbench.plugins.vllm.warm import warm_up


def test_warm_up_touches_the_null_block_alone() -> None:
    options = Options(nodes=20, block=8)
    state = TreeState(3, 20, torch.device("cpu"))
    cache = torch.randn(4, 2, 16, 8)
    before = cache.clone()
    warm_up(torch_ops, state, options, 50, 32, torch.float32, [torch_ops.cache_table([cache])])
    assert torch.equal(cache[1:], before[1:])
    assert state.row_slot.tolist() == [-1] * 3
    assert state.row_drafts.tolist() == [0] * 3
    assert int((state.parents[0] >= 0).sum()) == 20
