"""The machine while a cell runs: memory and load each second, and the GPU where NVML is at hand."""

from __future__ import annotations

import importlib
import threading
import time
from types import TracebackType
from typing import Any

import psutil

GIB = float(2**30)

Sample = tuple[float, str, float]  # seconds since the start, name, value


class Telemetry:
    """Samples this process and its GPU every ``interval_s`` seconds, and once more at the end, while in its context.

    Names: ``process_rss_gib``, ``cpu_percent`` (100 = one core), and with a GPU ``gpu_sm_clock_mhz``,
    ``gpu_mem_clock_mhz``, ``gpu_power_w``, ``gpu_power_limit_w``, ``gpu_temperature_c``, ``gpu_utilization_percent``,
    ``gpu_memory_gib`` and ``gpu_throttle_reasons`` (NVML's bit mask).
    """

    def __init__(self, gpu_index: int | None = None, interval_s: float = 1.0) -> None:
        self.samples: list[Sample] = []
        self._process = psutil.Process()
        self._gpu = None if gpu_index is None else _Gpu.open(gpu_index)
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Telemetry:
        self._start = time.perf_counter()
        self._process.cpu_percent()  # the first call only sets the mark
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    @property
    def peak_rss_gib(self) -> float:
        return max(value for _, name, value in self.samples if name == "process_rss_gib")

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        now = time.perf_counter() - self._start
        self.samples.append((now, "process_rss_gib", self._process.memory_info().rss / GIB))
        self.samples.append((now, "cpu_percent", self._process.cpu_percent()))
        if self._gpu is not None:
            self.samples += [(now, name, value) for name, value in self._gpu.read().items()]


class _Gpu:
    """One GPU through NVML (package ``nvidia-ml-py``). A reading that a card does not give is left out."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def open(cls, index: int) -> _Gpu | None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
            return cls(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError:
            return None

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
        }
        values = {}
        for name, reading in readings.items():
            try:
                values[name] = float(reading())  # type: ignore[no-untyped-call]
            except n.NVMLError:
                continue
        return values
