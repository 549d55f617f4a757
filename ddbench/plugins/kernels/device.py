"""What the launchers need to know of the device; a CPU stands for the interpreter, which tests use.

Torch is loaded by what asks a device alone, so that memory can be computed without it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@cache
def processors(device: torch.device) -> int:
    """Streaming multiprocessors."""
    import torch

    if device.type != "cuda":
        return 16
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory that one block may have."""
    import torch

    if device.type != "cuda":
        return shared_bytes_of((12, 0))
    return shared_bytes_of(torch.cuda.get_device_capability(device))


def shared_bytes_of(capability: tuple[int, int]) -> int:
    """CUDA C++ programming guide, table of compute capabilities: most shared memory of a thread block."""
    known = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227}
    return known.get(capability, 99) * 1024
