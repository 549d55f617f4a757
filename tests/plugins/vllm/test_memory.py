"""Memory, against what vLLM 0.26.0 printed for Qwen3-8B dimensions with a 5 GiB cache, and against the tables made."""

from __future__ import annotations

import pytest
import torch

from ddbench.plugins.vllm.memory import Layers, kv_tokens, reserved_tokens, table_bytes
from ddbench.plugins.vllm.state import TreeState

TARGET, DRAFTER = Layers(36, 8, 128), Layers(5, 8, 128)


@pytest.mark.parametrize(("drafter", "printed"), [(None, 36_400), (DRAFTER, 31_968)])
def test_tokens_in_a_cache_are_what_the_engine_printed(drafter: Layers | None, printed: int) -> None:
    assert kv_tokens(5 * 2**30, 16, TARGET, drafter) == pytest.approx(printed, rel=0.002)


@pytest.mark.parametrize("nodes", [1, 31, 32, 63, 127])
def test_bytes_of_the_tables_are_those_that_are_made(nodes: int) -> None:
    state = TreeState(5, nodes, torch.device("cpu"))
    tables = [value.untyped_storage() for value in vars(state).values() if isinstance(value, torch.Tensor)]
    made = sum({storage.data_ptr(): storage.nbytes() for storage in tables}.values())  # some are views of others
    assert table_bytes(5, nodes) == made


def test_a_budget_below_the_block_still_holds_the_block() -> None:
    assert reserved_tokens(2, 7, 16) == 2 * (8 + 16)
    assert reserved_tokens(1, 63, 16) == 64 + 64
