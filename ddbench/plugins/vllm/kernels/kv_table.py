"""The KV caches of all layers as one object that a kernel can walk over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KVTable:
    """Where the caches ``[blocks, kv_heads, block_size, 2 * head_size]`` of the layers lie; strides in elements.

    Attributes:
        pointers: int64 ``[layers]`` on the device. The caches must outlive the table.
    """

    pointers: Tensor
    layers: int
    heads: int
    block_size: int
    size: int
    element: int
    stride_block: int
    stride_head: int
    stride_slot: int

    @classmethod
    def of(cls, caches: Sequence[Tensor]) -> KVTable:
        """Raises ValueError where the layers differ in shape, strides, type or device, or a row is not contiguous."""
        if not caches:
            raise ValueError("no KV cache to move")
        first = caches[0]
        if first.dim() != 4 or first.stride(3) != 1:
            raise ValueError(f"KV cache {tuple(first.shape)}, strides {first.stride()}: needs 4 dimensions, last dense")
        for layer, cache in enumerate(caches):
            for name in ("shape", "dtype", "device"):
                if getattr(cache, name) != getattr(first, name):
                    raise ValueError(f"KV cache of layer {layer}: {name} {getattr(cache, name)} is not the first's")
            if cache.stride() != first.stride():
                raise ValueError(f"KV cache of layer {layer}: strides {cache.stride()}, the first's {first.stride()}")
            if cache.data_ptr() % 16:
                raise ValueError(f"KV cache of layer {layer} does not begin at a multiple of 16 bytes")
        pointers = torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64, device=first.device)
        return cls(
            pointers=pointers,
            layers=len(caches),
            heads=first.shape[1],
            block_size=first.shape[2],
            size=first.shape[3],
            element=first.element_size(),
            stride_block=first.stride(0),
            stride_head=first.stride(1),
            stride_slot=first.stride(2),
        )
