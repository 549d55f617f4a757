"""Memory and load of processes, as a source of telemetry."""

from __future__ import annotations

import contextlib

import psutil

GIB = float(2**30)


class Processes:
    """This process, or a process and its descendants, who may come and go; see :class:`runners.telemetry.Telemetry`."""

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


class ClientLoad:
    """Load of this process, which is the client of an engine that is another: ``client_cpu_percent``, 100 = a core."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def read(self) -> dict[str, float]:
        return {"client_cpu_percent": self._process.cpu_percent()}
