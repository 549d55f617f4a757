"""How `attention.attend` is launched: the same arguments and meaning as SGLang's own extend attention with a mask."""

from __future__ import annotations

import math
import os

import torch
import triton
from torch import Tensor

from ddbench.plugins.kernels.device import processors, shared_bytes
from ddbench.plugins.kernels.tiles import AttentionWorkspace
from ddbench.plugins.sglang.kernels.attention import attend, merge
from ddbench.plugins.sglang.kernels.attention_plan import Plan, entries_of, plan

FLOAT32 = (
    os.environ.get("TRITON_F32_DEFAULT", "") or "tf32"
)  # products of float32, as all kernels of the process take them


def workspace_for(
    rows: int, width: int, heads: int, kv_heads: int, head_size: int, element: int, device: torch.device
) -> AttentionWorkspace:
    """Room for the splits of every batch of up to ``rows`` sequences.

    Raises ValueError for a head that no tile fits.
    """
    entries = entries_of(rows, width, heads, kv_heads, head_size, element, shared_bytes(device), processors(device))
    return AttentionWorkspace.of(entries, heads, head_size, 1, device)


def verify_attention(
    query: Tensor,
    window_keys: Tensor,
    window_values: Tensor,
    cache_keys: Tensor,
    cache_values: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    mask: Tensor,
    mask_indptr: Tensor,
    width: int,
    scale: float,
    out: Tensor,
    *,
    workspace: AttentionWorkspace | None = None,
    cut: Plan | None = None,
    exact: bool = False,
) -> None:
    """Attention of R windows of N = ``width`` tokens, H heads over G key-value heads of size D.

    Args:
        query, out: ``[R * N, H, D]``.
        window_keys, window_values: ``[R * N, G, D]``, of the windows' own tokens; dense.
        cache_keys, cache_values: ``[slots, G, D]``.
        kv_indptr: ``[R + 1]``, where a row's slots begin in ``kv_indices``; the context alone.
        mask: bytes, row after row a block of ``N x (context + N)``, of which the last N columns are read.
        mask_indptr: ``[R + 1]``, where a row's block begins.
        scale: of the softmax.
        workspace: where splits put their parts; None: no splits.
        cut: for measurements and tests; None: `attention_plan.plan`'s.
        exact: products of float32 in float32, where SGLang's own attention takes TF32 and so does ours as left out, so
            that a tree's rounding is that of the engine's other passes.

    A token that sees nothing gets 0. Raises ValueError for layouts that the kernel does not read.
    """
    tokens, heads, head_size = query.shape
    kv_heads = cache_keys.shape[1]
    rows = kv_indptr.shape[0] - 1
    if tokens != rows * width or heads % kv_heads:
        raise ValueError(f"query={tuple(query.shape)}: needs [{rows} * {width}, a multiple of {kv_heads}, size]")
    _check_layout(query=query, window_keys=window_keys, window_values=window_values, out=out)
    _check_layout(cache_keys=cache_keys, cache_values=cache_values)
    if window_keys.stride() != window_values.stride():
        raise ValueError("window_keys and window_values: need the same strides")
    if cache_keys.dtype != query.dtype or cache_values.dtype != query.dtype:
        raise ValueError(f"cache is {cache_keys.dtype}, query {query.dtype}: a quantized cache is not read")
    if rows == 0:
        return
    device = query.device
    group = heads // kv_heads
    if cut is None:
        sizes = (heads, kv_heads, head_size, processors(device))
        cut = plan(width, rows, *sizes, element=query.element_size(), shared=shared_bytes(device))
    tile, splits = cut.tile, 1 if workspace is None else min(workspace.splits_for(tokens), cut.splits)
    m_blocks = triton.cdiv(width * group, tile.m)
    partial, lse = (out, out) if workspace is None else (workspace.partial, workspace.lse)
    shape = {"WIDTH": width, "GROUP": group, "HEAD": head_size, "HEAD_PAD": triton.next_power_of_2(head_size)}
    dealt = {"BLOCK_N": tile.n, "SPLITS": splits, "LEAST": cut.least_tiles}
    attend[(m_blocks * kv_heads, rows, splits)](
        query,
        window_keys,
        window_values,
        cache_keys,
        cache_values,
        kv_indptr,
        kv_indices,
        mask.view(torch.int8),
        mask_indptr,
        out,
        partial,
        lse,
        scale * math.log2(math.e),
        m_blocks,
        query.stride(0),
        query.stride(1),
        out.stride(0),
        out.stride(1),
        window_keys.stride(0),
        window_keys.stride(1),
        cache_keys.stride(0),
        cache_keys.stride(1),
        cache_values.stride(0),
        cache_values.stride(1),
        **shape,
        BLOCK_M=tile.m,
        **dealt,
        PRECISION="ieee" if exact else FLOAT32,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if splits > 1:
        merge[(kv_heads, width, rows)](
            kv_indptr,
            out,
            partial,
            lse,
            out.stride(0),
            out.stride(1),
            **shape,
            GROUP_PAD=triton.next_power_of_2(group),
            SPLITS_PAD=triton.next_power_of_2(splits),
            **dealt,
            num_warps=1 if group * head_size <= 256 else 4,
        )


def _check_layout(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name}: the last dimension must be contiguous, its stride is {tensor.stride(-1)}")
