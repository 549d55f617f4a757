"""A process tree and a GPU, read again and again. By path on a host, with nothing but Python >= 3.9 and nvidia-smi:

    python -I sampler.py PID GPU INTERVAL_S       GPU: number or UUID, or - for none

Prints one JSON object a reading, with the names of :class:`runners.telemetry.Telemetry`; what cannot be read is left
out. Ends with whoever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path

GIB = float(2**30)
NONE = "-"
LEAST_S = 0.1  # of a time that a load is told of: the kernel tells processor time in ticks of 0.01 s
# Names of ours, what nvidia-smi calls them, and the factor between their units.
GPU_VALUES = (
    ("gpu_sm_clock_mhz", "clocks.sm", 1.0),
    ("gpu_mem_clock_mhz", "clocks.mem", 1.0),
    ("gpu_power_w", "power.draw", 1.0),
    ("gpu_power_limit_w", "enforced.power.limit", 1.0),
    ("gpu_temperature_c", "temperature.gpu", 1.0),
    ("gpu_utilization_percent", "utilization.gpu", 1.0),
    ("gpu_memory_gib", "memory.used", 1 / 1024),
    ("gpu_throttle_reasons", "clocks_throttle_reasons.active", 1.0),  # a bit mask, written in hexadecimal
)


class Load:
    """Percent of a core that processes use, who may come and go, from one reading that tells it to the next.

    A reading within ``LEAST_S`` of the last that told is not one: the next tells of the whole time. A process that is
    new counts from then on, whatever it used before.
    """

    def __init__(self) -> None:
        self._used: Mapping[Hashable, float] = {}
        self._at: float | None = None

    def percent(self, used: Mapping[Hashable, float], now: float) -> float | None:
        """``used``: seconds of processor time by process, read at ``now`` seconds of a clock. None: it does not tell,
        as the first reading never does."""
        since, before = self._at, self._used
        if since is not None and now - since < LEAST_S:
            return None
        self._at, self._used = now, used
        if since is None:
            return None
        return 100 * sum(seconds - before.get(process, seconds) for process, seconds in used.items()) / (now - since)


class Processes:
    """A process and its descendants, who may come and go. Linux, proc(5)."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._tick, self._page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        self._load = Load()

    def read(self) -> dict[str, float]:
        """Resident memory in GiB and load in percent of a core, summed; of the load see :class:`Load`."""
        table = {pid: row for pid, *row in self._table()}
        tree = {self._root}
        while True:
            more = {pid for pid, (parent, *_) in table.items() if parent in tree} - tree
            if not more:
                break
            tree |= more
        found = {pid: table[pid] for pid in tree if pid in table}
        told = {"process_rss_gib": sum(rss for *_, rss in found.values()) / GIB}
        used = {(pid, began): seconds for pid, (_, began, seconds, _) in found.items()}
        percent = self._load.percent(used, time.monotonic())
        return told if percent is None else {**told, "cpu_percent": percent}

    def _table(self) -> Iterator[tuple[int, int, int, float, int]]:
        """Process, parent, tick of its start, seconds of processor time and resident bytes of everything that runs."""
        for place in Path("/proc").iterdir():
            if not place.name.isdigit():
                continue
            try:
                parts = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            used = (int(parts[11]) + int(parts[12])) / self._tick
            yield int(place.name), int(parts[1]), int(parts[19]), used, int(parts[21]) * self._page


class Gpu:
    """One GPU by nvidia-smi, which repeats its answer by itself; the last one counts."""

    def __init__(self, gpu: str, interval_s: float) -> None:
        self._last: dict[str, float] = {}
        query = ",".join(theirs for _, theirs, _ in GPU_VALUES)
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", f"--id={gpu}"]
        with contextlib.suppress(OSError):
            command.append(f"--loop-ms={int(interval_s * 1000)}")
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            threading.Thread(target=self._listen, args=(child,), daemon=True).start()

    def read(self) -> dict[str, float]:
        return dict(self._last)

    def _listen(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            self._last = gpu_values(line)
        self._last = {}


def gpu_values(line: str) -> dict[str, float]:
    """One line of nvidia-smi as values by our names."""
    parts = [part.strip() for part in line.split(",")]
    values: dict[str, float] = {}
    if len(parts) != len(GPU_VALUES):
        return values
    for at, (ours, _, factor) in enumerate(GPU_VALUES):
        with contextlib.suppress(ValueError):
            values[ours] = (int(parts[at], 16) if parts[at].startswith("0x") else float(parts[at])) * factor
    return values


def main(pid: int, gpu: str, interval_s: float) -> None:
    processes = Processes(pid)
    card = None if gpu == NONE else Gpu(gpu, interval_s)
    parent = os.getppid()
    while os.getppid() == parent:
        values = processes.read()
        if card is not None:
            values.update(card.read())
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()
        time.sleep(interval_s)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
