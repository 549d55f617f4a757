"""Readings of one GPU, whatever gives them: NVML, the program ``nvidia-smi``, or nothing where there is no GPU.

Names: ``gpu_sm_clock_mhz``, ``gpu_mem_clock_mhz``, ``gpu_power_w``, ``gpu_power_limit_w``, ``gpu_temperature_c``,
``gpu_utilization_percent``, ``gpu_memory_gib``, ``gpu_throttle_reasons`` (NVML's bit mask) and ``gpu_energy_j`` (used
since the driver was loaded; from NVML alone, and from Volta on).
"""

from __future__ import annotations

from typing import Any, Protocol

from runners.gpu_memory import GIB, Gpu, open_gpu
from runners.hosts import Host, HostFailure, LocalHost
from runners.hosts.sampler import GPU_VALUES, gpu_values

SMI_TIMEOUT_S = 20.0


class Source(Protocol):
    """Something that is asked for readings, by name; one that it does not give is left out."""

    def read(self) -> dict[str, float]: ...


class NoGpu:
    """Of a machine without a GPU."""

    def read(self) -> dict[str, float]:
        return {}


class Nvml:
    """Through NVML, as the module ``pynvml`` of the package ``nvidia-ml-py`` has it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def read(self) -> dict[str, float]:
        n, h = self._nvml, self._handle
        readings = {
            "gpu_sm_clock_mhz": lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
            "gpu_mem_clock_mhz": lambda: n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM),
            "gpu_power_w": lambda: n.nvmlDeviceGetPowerUsage(h) / 1000,
            "gpu_power_limit_w": lambda: n.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
            "gpu_temperature_c": lambda: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
            "gpu_utilization_percent": lambda: n.nvmlDeviceGetUtilizationRates(h).gpu,
            "gpu_memory_gib": lambda: n.nvmlDeviceGetMemoryInfo(h).used / GIB,
            "gpu_throttle_reasons": lambda: n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
            "gpu_energy_j": lambda: n.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,
        }
        values = {}
        for name, reading in readings.items():
            try:
                values[name] = float(reading())  # type: ignore[no-untyped-call]
            except n.NVMLError:
                continue
        return values


class Smi:
    """Through ``nvidia-smi`` on a host, a call a reading; it has no energy counter."""

    def __init__(self, host: Host, gpu: Gpu) -> None:
        query = ",".join(theirs for _, theirs, _ in GPU_VALUES)
        self._command = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        self._host = host

    def read(self) -> dict[str, float]:
        try:
            done = self._host.run(self._command, timeout_s=SMI_TIMEOUT_S)
        except HostFailure:
            return {}
        return gpu_values(done.stdout.strip()) if done.ok else {}


def open_source(gpu: Gpu, host: Host | None = None) -> Source:
    """What there is to read a GPU with (its NVML index, or a UUID) on a host, None for this machine."""
    if host is not None and not host.is_local:
        return Smi(host, gpu)
    opened = open_gpu(gpu)
    if opened is not None:
        return Nvml(*opened)
    asked = Smi(host or LocalHost(), gpu)
    return asked if asked.read() else NoGpu()
