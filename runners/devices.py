"""``engine.device`` as GPUs: what ``CUDA_VISIBLE_DEVICES`` is to say, and what NVML calls them."""

from __future__ import annotations

import os

from ddbench.errors import ConfigError
from runners.gpu_memory import Gpu, visible_gpus
from runners.hosts.config import HostConfig


def gpus_of(device: str, count: int, host: HostConfig | None = None) -> tuple[Gpu, ...]:
    """The ``count`` GPUs from ``cuda`` (the first that may be used) or ``cuda:<index>`` on; none for ``cpu``.

    Which may be used is said by ``host.gpus``, else on this machine by ``CUDA_VISIBLE_DEVICES``.

    Raises:
        ConfigError: those are fewer.
    """
    if device == "cpu":
        return ()
    first = int(device.partition(":")[2] or 0)
    if host is not None and host.gpus is not None:
        listed = host.gpus[first : first + count]
        if len(listed) < count:
            raise ConfigError("engine.device", device, f"{count} of the GPUs of host.gpus={list(host.gpus)}")
        return tuple(listed)
    if host is not None and host.kind != "local":
        return tuple(range(first, first + count))
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return tuple(range(first, first + count))
    chosen = tuple(visible_gpus()[first : first + count])
    if len(chosen) < count:
        seen = os.environ["CUDA_VISIBLE_DEVICES"]
        raise ConfigError("engine.device", device, f"{count} of the GPUs that CUDA_VISIBLE_DEVICES={seen} shows")
    return chosen
