from __future__ import annotations

import importlib.util
import time

import pytest

from runners.gpu_memory import MemoryGate, used_gib, visible_gpus


def test_the_gpus_that_a_process_sees() -> None:
    assert visible_gpus({}) == [0]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "2, 0"}) == [2, 0]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1,-1,3"}) == [1]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-1a,MIG-2b"}) == ["GPU-1a", "MIG-2b"]


def test_without_a_gpu_there_is_nothing_to_wait_for() -> None:
    began = time.monotonic()
    assert MemoryGate.before([]).wait(30.0) is None
    assert time.monotonic() - began < 1


def test_a_gpu_that_cannot_be_read_is_named_at_once() -> None:
    began = time.monotonic()
    assert "GPU 987 cannot be read" in (MemoryGate.before([987]).wait(30.0) or "")
    assert time.monotonic() - began < 5


@pytest.mark.gpu
def test_memory_is_seen_to_be_held_and_to_come_back() -> None:
    torch = pytest.importorskip("torch")
    assert importlib.util.find_spec("pynvml") is not None
    torch.zeros(1, device="cuda")  # the context itself
    gate = MemoryGate.before([0])
    block = torch.zeros(2**31, dtype=torch.uint8, device="cuda")
    assert "GPU 0 still has" in (gate.wait(0.3) or "")
    del block
    torch.cuda.empty_cache()
    assert gate.wait(10.0) is None
    assert (used_gib(0) or 0) > 0
