"""The machine while a cell runs: memory and load each second, and the GPU where NVML is at hand."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any

import psutil

from runners.gpu_memory import GIB, Gpu, open_gpu

Sample = tuple[float, str, float]  # seconds since the start, name, value


class Telemetry:
    """Samples a process and its GPU every ``interval_s`` seconds, and once more at the end, while in its context.

    Without ``pid`` it is this process alone. With it, that process and all its descendants are summed, a shared page
    once for each that holds it: how an engine server is measured. Processes that have ended count nothing.

    ``gpu_index`` is NVML's index, or a UUID.

    Names: ``process_rss_gib``, ``cpu_percent`` (100 = one core), and with a GPU ``gpu_sm_clock_mhz``,
    ``gpu_mem_clock_mhz``, ``gpu_power_w``, ``gpu_power_limit_w``, ``gpu_temperature_c``, ``gpu_utilization_percent``,
    ``gpu_memory_gib`` and ``gpu_throttle_reasons`` (NVML's bit mask).
    """

    def __init__(self, gpu_index: Gpu | None = None, interval_s: float = 1.0, pid: int | None = None) -> None:
        self.samples: list[Sample] = []
        self._processes = _Processes(pid)
        self._gpu = None if gpu_index is None else _Gpu.open(gpu_index)
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Telemetry:
        self._start = time.perf_counter()
        self._processes.read()  # the first call only sets the mark of the processors' time
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
        self.samples += [(now, name, value) for name, value in self._processes.read().items()]
        if self._gpu is not None:
            self.samples += [(now, name, value) for name, value in self._gpu.read().items()]


class _Processes:
    """This process, or a process and its descendants, who may come and go."""

    def __init__(self, pid: int | None) -> None:
        self._root: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root = psutil.Process(pid)
        self._tree = pid is not None
        self._known: dict[int, psutil.Process] = {}  # kept: a Process remembers what it measured last

    def read(self) -> dict[str, float]:
        """Resident memory in GiB and load in percent of a core since the last call, summed."""
        rss = percent = 0.0
        for process in self._present():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
                rss += process.memory_info().rss
                percent += process.cpu_percent()
        return {"process_rss_gib": rss / GIB, "cpu_percent": percent}

    def _present(self) -> list[psutil.Process]:
        if self._root is None:
            return []
        found = [self._root]
        if self._tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += self._root.children(recursive=True)
        self._known = {process.pid: self._known.get(process.pid, process) for process in found}
        return list(self._known.values())


class _Gpu:
    """One GPU through NVML (package ``nvidia-ml-py``). A reading that a card does not give is left out."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def open(cls, gpu: Gpu) -> _Gpu | None:
        opened = open_gpu(gpu)
        return None if opened is None else cls(*opened)

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
