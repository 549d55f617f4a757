"""Memory and load of processes, as a source of telemetry."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable

import psutil

from runners.hosts.sampler import Load

GIB = float(2**30)


class Processes:
    """This process, or a process and its descendants, who may come and go; see :class:`runners.telemetry.Telemetry`."""

    def __init__(self, pid: int | None) -> None:
        self._root: psutil.Process | None = None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root = psutil.Process(pid)
        self._tree = pid is not None
        self._load = Load()

    def read(self) -> dict[str, float]:
        """Resident memory in GiB and load in percent of a core, summed; see :class:`runners.hosts.sampler.Load`."""
        rss = 0.0
        used: dict[Hashable, float] = {}
        for process in self._present():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
                rss += process.memory_info().rss
                used[process] = _used_s(process)
        told = {"process_rss_gib": rss / GIB}
        percent = self._load.percent(used, time.monotonic())
        return told if percent is None else told | {"cpu_percent": percent}

    def _present(self) -> list[psutil.Process]:
        if self._root is None:
            return []
        found = [self._root]
        if self._tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += self._root.children(recursive=True)
        return found


class ClientLoad:
    """Load of this process, which is the client of an engine that is another: ``client_cpu_percent``, 100 = a core."""

    def __init__(self) -> None:
        self._process, self._load = psutil.Process(), Load()

    def read(self) -> dict[str, float]:
        percent = self._load.percent({self._process: _used_s(self._process)}, time.monotonic())
        return {} if percent is None else {"client_cpu_percent": percent}


def _used_s(process: psutil.Process) -> float:
    """Seconds of processor time of a process without its children's."""
    times = process.cpu_times()
    return float(times.user + times.system)
