"""How `topk` is launched."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ddbench.plugins.kernels.topk import choose, scan

SCAN_BLOCK = 8192  # entries that one program of the scan reads


def best(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """As `candidates_torch.best`; entries and ids exactly, log-sum-exp to float32 rounding."""
    return _launch(logits, k, raw=True)


def candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `candidates_torch.candidates`; log-probabilities to float32 rounding of the sum, ids exactly."""
    log_probs, ids, _ = _launch(logits, k, raw=False)
    return log_probs, ids


def _launch(logits: Tensor, k: int, raw: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    group = 64 if k <= 64 else 32
    groups, chunks = triton.cdiv(vocabulary, group), triton.cdiv(vocabulary, SCAN_BLOCK)
    picked = min(k, groups)
    k_pad, picked_pad = triton.next_power_of_2(k), triton.next_power_of_2(picked)
    bits = 16 if logits.dtype == torch.bfloat16 else 32

    def new(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    values, ids = new(rows, k, dtype=torch.float32), new(rows, k)
    lse = new(rows, dtype=torch.float32) if raw else values
    if rows == 0:
        return values, ids, lse
    keys, maxima, sums = (
        new(rows, groups),
        new(rows, chunks, dtype=torch.float32),
        new(rows, chunks, dtype=torch.float32),
    )
    sizes = (logits.stride(0), vocabulary, groups, chunks)
    scan[(rows, chunks)](logits, keys, maxima, sums, *sizes, GROUP=group, BLOCK=SCAN_BLOCK, BITS=bits, num_warps=8)
    choose[(rows,)](
        logits,
        keys,
        maxima,
        sums,
        new(rows, picked_pad),
        new(rows, k_pad, dtype=torch.float32),
        new(rows, k_pad),
        values,
        ids,
        lse,
        *sizes,
        K=k,
        K_PAD=k_pad,
        PICKED=picked,
        PICKED_PAD=picked_pad,
        GROUP=group,
        GROUPS_PAD=triton.next_power_of_2(groups),
        CHUNKS_PAD=triton.next_power_of_2(chunks),
        BITS=bits,
        RAW=raw,
        num_warps=8,
    )
    return values, ids, lse
