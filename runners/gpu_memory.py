"""GPU memory through NVML (package ``nvidia-ml-py``, optional): whose it is does not matter, only that it came back."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GIB = float(2**30)
TOLERANCE_GIB = 0.5  # what a driver may keep or a neighbour may take meanwhile
POLL_S = 0.2

Gpu = int | str  # NVML index, or UUID ("GPU-...", "MIG-...")


def visible_gpus(environment: Mapping[str, str] | None = None) -> list[Gpu]:
    """What ``CUDA_VISIBLE_DEVICES`` lets a process see, in its order; without it GPU 0.

    CUDA counts as NVML does only under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``: set it for an engine whose GPUs differ.
    """
    listed = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [0]
    names = [name.strip() for name in listed.split(",")]
    gpus: list[Gpu] = []
    for name in names:
        if not name or name == "-1":  # CUDA ignores this one and all that follow
            break
        gpus.append(int(name) if name.isdecimal() else name)
    return gpus


def open_gpu(gpu: Gpu) -> tuple[Any, Any] | None:
    """NVML and its handle of a GPU; None where there is no NVML, or no such GPU."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        named = nvml.nvmlDeviceGetHandleByIndex if isinstance(gpu, int) else nvml.nvmlDeviceGetHandleByUUID
        return nvml, named(gpu)
    except nvml.NVMLError:
        return None


def used_gib(gpu: Gpu) -> float | None:
    """Memory of a GPU in use by anybody, in GiB; None where it cannot be read."""
    opened = open_gpu(gpu)
    if opened is None:
        return None
    nvml, handle = opened
    try:
        return float(nvml.nvmlDeviceGetMemoryInfo(handle).used) / GIB
    except nvml.NVMLError:
        return None


@dataclass(frozen=True)
class MemoryGate:
    """What was in use on each GPU before a server started, in GiB; None: it cannot be read."""

    levels: tuple[tuple[Gpu, float | None], ...]
    read: Callable[[Gpu], float | None] = used_gib  # how it is read where the GPUs are

    @classmethod
    def before(cls, gpus: Sequence[Gpu], read: Callable[[Gpu], float | None] = used_gib) -> MemoryGate:
        return cls(tuple((gpu, read(gpu)) for gpu in gpus), read)

    def wait(self, timeout_s: float) -> str | None:
        """Waits until every GPU is back at its level; what is missing after ``timeout_s`` seconds, in words.

        A GPU that cannot be read is named too: nothing is known about its memory.
        """
        deadline = time.monotonic() + timeout_s
        problem = self._missing()
        while problem is not None and time.monotonic() < deadline and self._readable():
            time.sleep(POLL_S)
            problem = self._missing()
        return problem

    def _readable(self) -> bool:
        return all(level is not None for _, level in self.levels)

    def _missing(self) -> str | None:
        for gpu, level in self.levels:
            now = self.read(gpu)
            if level is None or now is None:
                return f"the memory of GPU {gpu} cannot be read (nvidia-ml-py missing?)"
            if now > level + TOLERANCE_GIB:
                return f"GPU {gpu} still has {now:.2f} GiB in use, {level:.2f} GiB before the engine started"
        return None
