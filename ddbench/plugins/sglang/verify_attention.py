"""The plug-in's own attention in the place of the Triton backend's, in passes with a tree mask and nowhere else.

SGLang's kernel takes a block of 64 or 128 query rows for one head, of which a window fills 16 to 64, and reads keys and
values once for every head of a group; its mask costs another pass over the window's tile. Ours stacks a group's heads
(`kernels.attention`). It reads the same mask from the same buffer, so all that is checked of the mask holds for both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ddbench.errors import ConfigError
from ddbench.plugins.kernels.tiles import AttentionWorkspace
from ddbench.plugins.sglang.kernels.attention_launch import verify_attention, workspace_for
from ddbench.plugins.sglang.options import ATTENTION
from ddbench.plugins.sglang.refused import say

BACKEND = "TritonAttnBackend"


class VerifyAttention:
    """Takes what SGLang's ``extend_attention_fwd`` takes; what ours does not do goes on to SGLang's.

    ``ran``: whose attention the last pass with a mask ran, ``own`` or ``sglang``; None before the first.
    """

    def __init__(self, stock: Callable[..., Any], workspace: AttentionWorkspace) -> None:
        self._stock = stock
        self._workspace = workspace
        self.ran: str | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        query, window_keys, window_values, out, cache_keys, cache_values = args[:6]
        _, kv_indptr, kv_indices, mask, _, mask_indptr, width, k_scale, v_scale, scale = args[6:16]
        if mask is None:
            return self._stock(*args, **kwargs)
        ours = k_scale == 1.0 and v_scale == 1.0 and not args[16:] and _plain(kwargs)
        ours = ours and _alike(query, cache_keys, cache_values, int(width), kv_indptr)
        self.ran = "own" if ours else "sglang"
        if not ours:
            return self._stock(*args, **kwargs)
        return verify_attention(
            query,
            window_keys,
            window_values,
            cache_keys,
            cache_values,
            kv_indptr,
            kv_indices,
            mask,
            mask_indptr,
            int(width),
            query.shape[-1] ** -0.5 if scale is None else float(scale),
            out,
            workspace=self._workspace,
        )


def _plain(options: dict[str, Any]) -> bool:
    """None of the things that bend scores: soft caps, sliding windows, sinks, biases, temperatures by length."""
    nothing = ("sinks", "window_kv_offsets", "lse_extend", "score_mod", "aux_tensors")
    return (
        not options.get("logit_cap")
        and options.get("sliding_window_size", -1) in (-1, None)
        and options.get("xai_temperature_len", -1) <= 0
        and options.get("page_size", 1) == 1
        and options.get("skip_prefix_custom_mask", True)
        and not any(options.get(name) for name in ("skip_prefix", "skip_extend", "identity_kv_indices"))
        and all(options.get(name) is None for name in nothing)
    )


def _alike(query: Tensor, keys: Tensor, values: Tensor, width: int, kv_indptr: Tensor) -> bool:
    """One width for all rows, one element type, and keys and values of one head size."""
    return bool(
        query.shape[0] == (kv_indptr.shape[0] - 1) * width
        and query.dtype == keys.dtype == values.dtype
        and query.shape[-1] == keys.shape[-1] == values.shape[-1]
    )


def install(
    backend: Any, rows: int, width: int, dtype: torch.dtype, device: torch.device | str
) -> VerifyAttention | None:
    """Gives the target's backend our attention and returns it; None where SGLang's own stays.

    ``rows``: most sequences of a pass. Another backend than Triton's keeps its own, and so does one whose heads fit no
    tile; the log says so. Raises ConfigError where ``ATTENTION`` asks for ours there, or is neither of the two.
    """
    named = os.environ.get(ATTENTION, "")
    if named not in ("", "own", "sglang"):
        raise ConfigError(ATTENTION, named, "own or sglang")
    if named == "sglang":
        return None
    if type(backend).__name__ != BACKEND:
        _left(named, f"the backend is {type(backend).__name__}, not {BACKEND}")
        return None
    heads, kv_heads, head_size = int(backend.num_head), int(backend.num_kv_head), int(backend.v_head_dim)
    try:
        workspace = workspace_for(rows, width, heads, kv_heads, head_size, dtype.itemsize, torch.device(device))
    except ValueError as error:
        _left(named, str(error))
        return None
    attention = VerifyAttention(backend.extend_attention_fwd, workspace)
    backend.extend_attention_fwd = torch.compiler.disable(attention)  # type: ignore[no-untyped-call]
    return attention


def _left(named: str, why: str) -> None:
    if named:
        raise ConfigError(ATTENTION, named, f"sglang, or left out: {why}")
    say(f"verify passes keep SGLang's own attention: {why}")
