"""``engine.device`` as GPUs: what ``CUDA_VISIBLE_DEVICES`` is to say, and what NVML calls them."""

from __future__ import annotations

import os

from ddbench.errors import ConfigError
from runners.gpu_memory import Gpu, visible_gpus


def gpus_of(device: str, count: int) -> tuple[Gpu, ...]:
    """The ``count`` GPUs from ``cuda`` (the first that is visible) or ``cuda:<index>`` on; none for ``cpu``.

    Raises:
        ConfigError: ``CUDA_VISIBLE_DEVICES`` shows fewer.
    """
    if device == "cpu":
        return ()
    first = int(device.partition(":")[2] or 0)
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return tuple(range(first, first + count))
    chosen = tuple(visible_gpus()[first : first + count])
    if len(chosen) < count:
        seen = os.environ["CUDA_VISIBLE_DEVICES"]
        raise ConfigError("engine.device", device, f"{count} of the GPUs that CUDA_VISIBLE_DEVICES={seen} shows")
    return chosen
