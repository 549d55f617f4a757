"""The readings of :mod:`runners.hosts.sampler` on a host, as they come."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path
from types import TracebackType

from runners import engine_log
from runners.gpu_memory import Gpu
from runners.hosts import sampler
from runners.hosts.base import Host, HostFailure, Process

FIRST_S = 15.0  # for the first reading to come
POLL_S = 0.05
LONGEST = 4096  # bytes of two readings


class HostReadings:
    """A process tree and a GPU of a host behind ssh, while in the context. :meth:`read` gives the newest reading.

    A sampler that does not start, or ends, gives no readings: telemetry is missing, and the measurement goes on.
    """

    def __init__(self, host: Host, pid: int, gpu: Gpu | None, interval_s: float) -> None:
        self._host = host
        self._words = [str(pid), sampler.NONE if gpu is None else str(gpu), str(interval_s)]

    def __enter__(self) -> HostReadings:
        self._folder = tempfile.TemporaryDirectory(prefix="ddbench-readings-")
        self._log = Path(self._folder.name) / "readings"
        self._process: Process | None = None
        try:
            self._process = self._host.start_script(sampler, self._words, log=self._log)
        except HostFailure:
            return self
        deadline = time.monotonic() + FIRST_S
        while not self.read() and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop()
        self._folder.cleanup()

    def read(self) -> dict[str, float]:
        """The newest whole reading; empty before the first, and after the sampler's end."""
        if self._process is None or not self._log.exists():
            return {}
        start = max(0, self._log.stat().st_size - LONGEST)
        whole = engine_log.read_part(self._log, start).decode(errors="replace").rpartition("\n")[0].splitlines()
        if not whole or self._process.poll() is not None:
            return {}
        with contextlib.suppress(ValueError):
            found: dict[str, float] = json.loads(whole[-1])
            return found
        return {}
