"""The key and value buffers of all layers as one object that a kernel can walk over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Buffers of the same bytes a slot; ``pointers`` int64 ``[buffers]`` on the device."""

    pointers: Tensor
    buffers: int
    slot_bytes: int


@dataclass(frozen=True)
class KVTable:
    """Where the buffers ``[slots, ...]`` lie, dense within a slot and slot after slot. They must outlive the table."""

    groups: tuple[Group, ...]

    @classmethod
    def of(cls, buffers: Sequence[Tensor]) -> KVTable:
        """Raises ValueError for no buffer, one that is not dense, or one that does not begin at 16 bytes."""
        if not buffers:
            raise ValueError("no KV buffer to move")
        sizes: dict[int, list[int]] = {}
        for at, buffer in enumerate(buffers):
            if not buffer.is_contiguous() or buffer.device != buffers[0].device:
                raise ValueError(f"KV buffer {at}: {tuple(buffer.shape)}, strides {buffer.stride()}: needs to be dense")
            if buffer.data_ptr() % 16:
                raise ValueError(f"KV buffer {at} does not begin at a multiple of 16 bytes")
            slot_bytes = buffer.element_size() * math.prod(buffer.shape[1:])
            sizes.setdefault(slot_bytes, []).append(buffer.data_ptr())
        device = buffers[0].device
        return cls(
            tuple(
                Group(torch.tensor(pointers, dtype=torch.int64, device=device), len(pointers), slot_bytes)
                for slot_bytes, pointers in sizes.items()
            )
        )
