"""The k best of a row of logits: ids exactly those of a stable sort, log-probabilities to rounding."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from kernel_cases import DEVICES, on_device

from ddbench.plugins.vllm import torch_ops
from ddbench.plugins.vllm.kernels import ops


def check(logits: torch.Tensor, k: int, device: str) -> None:
    expected, expected_ids = torch_ops.candidates(logits, k)
    found, found_ids = ops.candidates(logits.to(device), k)
    assert found.dtype == torch.float32
    assert found_ids.dtype == torch.int32
    assert torch.equal(found_ids.cpu(), expected_ids), (logits.dtype, logits.shape, k)
    torch.testing.assert_close(found.cpu(), expected, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("k", [1, 7, 16, 63, 64, 100, 127])
def test_random_logits(device: str, dtype: torch.dtype, k: int) -> None:
    on_device(device)
    sizes = [(2, 320), (2, 20_001)] if device == "cpu" else [(15, 320), (480, 20_001), (15, 151_936), (480, 151_936)]
    for rows, vocabulary in sizes:
        generator = torch.Generator(device).manual_seed(k)
        logits = torch.randn(rows, vocabulary, generator=generator, device=device).to(dtype).cpu() * 4
        check(logits, k, device)  # bfloat16 is full of ties


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_ties_and_extremes(device: str, dtype: torch.dtype) -> None:
    on_device(device)
    size = 9000
    generator = torch.Generator().manual_seed(0)
    few = torch.randint(-1, 2, (2, size), generator=generator).to(dtype)
    check(few, 127, device)
    check(few * 0.0, 64, device)  # zeros of both signs are equal
    together = torch.full((1, size), -5.0)
    together[0, 3000:3100] = torch.arange(100.0)  # the best stand in few groups
    check(together.to(dtype), 63, device)
    ruled_out = torch.full((1, size), -torch.inf)
    ruled_out[0, [5, 8000, 8191, 8192]] = torch.tensor([1.0, 2.0, 2.0, 1.0])
    check(ruled_out.to(dtype), 4, device)
    large = torch.randn(1, size, generator=generator) * 1e4
    check(large.to(dtype), 32, device)


@pytest.mark.parametrize("device", DEVICES)
def test_fewer_entries_than_asked_for_and_strided_rows(device: str) -> None:
    on_device(device)
    check(torch.randn(3, 5), 64, device)
    check(torch.randn(3, 70), 64, device)
    wide = torch.randn(6, 500)
    check(wide[::2, :400], 20, device)
    found, ids = ops.candidates(torch.empty(0, 320, device=device), 4)
    assert found.shape == ids.shape == (0, 4)
