"""Samples whatever sources there are, each second, beside what is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from runners.gpu_memory import Gpu
from runners.hosts import Host
from runners.hosts.readings import HostReadings
from runners.telemetry.gpu import Source, open_source
from runners.telemetry.processes import ClientLoad, Processes

Sample = tuple[float, str, float]  # seconds since the start, name, value


class Telemetry:
    """Samples a process and its GPU every ``interval_s`` seconds, and once more at the end, while in its context.

    Without ``pid`` it is this process alone. With it, that process and all its descendants are summed, a shared page
    once for each that holds it: how an engine server is measured; and this process, its client, is another source.
    Processes that have ended count nothing.

    ``gpu_index`` is NVML's index, or a UUID; several for an engine that spans several, of which the second's names
    begin with ``gpu1_`` instead of ``gpu_``, and so on. With ``host``, process and GPUs are there.

    Names: ``process_rss_gib``, ``cpu_percent`` (100 = one core, since the reading that told it last; not at the start,
    and of no shorter time than `runners.hosts.sampler.LEAST_S`), ``client_cpu_percent`` likewise, and those of
    :mod:`runners.telemetry.gpu`.
    """

    def __init__(
        self,
        gpu_index: Gpu | Sequence[Gpu] | None = None,
        interval_s: float = 1.0,
        pid: int | None = None,
        host: Host | None = None,
    ) -> None:
        self.samples: list[Sample] = []
        gpus = [gpu_index] if isinstance(gpu_index, int | str) else list(gpu_index or ())
        self._far: HostReadings | None = None
        self._sources: list[tuple[Source, int]] = []  # with the place of their GPU
        if host is None or host.is_local or pid is None:
            self._sources = [(Processes(pid), 0), *((open_source(gpu), place) for place, gpu in enumerate(gpus))]
        else:
            self._far = HostReadings(host, pid, gpus[0] if gpus else None, interval_s)  # the first GPU among them
            more = [(open_source(gpu, host), place) for place, gpu in enumerate(gpus) if place]
            self._sources = [(self._far, 0), *more]
        if pid is not None:
            self._sources.append((ClientLoad(), 0))
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Telemetry:
        if self._far is not None:
            self._far.__enter__()
        self._start = time.perf_counter()
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()
        if self._far is not None:
            self._far.__exit__(kind, error, trace)

    @property
    def peak_rss_gib(self) -> float | None:
        """Most of what was seen; None where nothing was, on a host that was lost."""
        return max((value for _, name, value in self.samples if name == "process_rss_gib"), default=None)

    def _run(self) -> None:
        due_s = self._start
        while True:
            due_s = max(due_s + self._interval_s, time.perf_counter())
            if self._stop.wait(due_s - time.perf_counter()):
                return
            self._sample()

    def _sample(self) -> None:
        for source, place in self._sources:
            read = source.read()
            now = time.perf_counter() - self._start
            self.samples += [(now, _of_gpu(name, place), value) for name, value in read.items()]


def _of_gpu(name: str, place: int) -> str:
    return name.replace("gpu_", f"gpu{place}_", 1) if place else name
