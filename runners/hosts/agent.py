"""What ddbench asks of the machine it runs on. By path on a host, with nothing but Python >= 3.9 and nvidia-smi:

    python -I agent.py facts
    python -I agent.py port PORT       0 for any free one; status 3 and a reason where it cannot be had
    python -I agent.py used GPU        bytes of a GPU's memory in use
    python -I agent.py listens MARK PORT
    python -I agent.py bury MARK S     waits S seconds for all that carries the mark to end, then SIGKILL; what stays

Each prints one JSON value on its last line. A mark is the value of the environment variable ``DDBENCH_MARK``, which
every process that a keeper started there has inherited.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MARK = "DDBENCH_MARK"
LOOPBACK = "127.0.0.1"
REFUSED = 3
SMI_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 10.0
LISTENING = "0A"  # st in /proc/net/tcp, proc(5)
MIB = 2**20

# Names of ours, and what nvidia-smi calls them. Megahertz, watts, MiB, degrees Celsius.
NUMBERS = {
    "index": "index",
    "memory_total_mib": "memory.total",
    "memory_used_mib": "memory.used",
    "power_limit_w": "power.limit",
    "power_limit_default_w": "power.default_limit",
    "power_limit_max_w": "power.max_limit",
    "sm_clock_mhz": "clocks.sm",
    "sm_clock_max_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.mem",
    "memory_clock_max_mhz": "clocks.max.mem",
    "pcie_generation": "pcie.link.gen.current",
    "pcie_generation_max": "pcie.link.gen.max",
    "pcie_width": "pcie.link.width.current",
    "pcie_width_max": "pcie.link.width.max",
    "temperature_c": "temperature.gpu",
}
TEXTS = {
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "ecc": "ecc.mode.current",
    "persistence": "persistence_mode",
    "compute_mode": "compute_mode",
    "mig": "mig.mode.current",
}


def facts() -> dict[str, Any]:
    """The machine, its GPUs and who computes on them; a value that is not known is None.

    ``gpus``: one each, with the keys of ``NUMBERS`` and ``TEXTS``. ``neighbours``: processes that compute on a GPU, as
    ``uuid``, ``pid``, ``name`` and ``memory_mib``. ``cuda``: the newest version that the driver can run.
    """
    gpus = _gpus()
    return {
        "hostname": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "cpu_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "disk_free_gib": round(shutil.disk_usage(Path.home()).free / 2**30, 2),
        "user": os.environ.get("USER") or str(os.getuid()),
        "gpus": gpus,
        "driver": gpus[0]["driver"] if gpus else None,
        "cuda": _cuda(),
        "neighbours": _neighbours(),
    }


def claim(port: int) -> int:
    """``port`` if a server can listen on it now, or a free one for 0. Raises OSError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a closed connection may linger
        probe.bind((LOOPBACK, port))
        return int(probe.getsockname()[1])


def used_bytes(gpu: str) -> int | None:
    """Memory of a GPU (number or UUID) in use by anybody; None where it cannot be read."""
    text = _smi("--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={gpu}")
    value = _number(text or "")
    return None if value is None else int(value * MIB)


def marked(mark: str) -> list[int]:
    """Processes that carry a mark, without this one. Linux."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        try:
            entries = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in entries:
            found.append(int(place.name))
    return found


def listens(mark: str, port: int) -> bool:
    """Whether a process that carries the mark listens on a port."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    return any(_open_files(pid) & inodes for pid in marked(mark))


def bury(mark: str, patience_s: float) -> list[int]:
    """Waits until all that carries the mark has ended, then kills it; returns what is there ten seconds later."""
    told_at = time.monotonic() + patience_s
    while True:
        left = marked(mark)
        if not left or time.monotonic() > told_at + KILL_TIMEOUT_S:
            return left
        if time.monotonic() >= told_at:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _gpus() -> list[dict[str, Any]]:
    names = [*NUMBERS.items(), *TEXTS.items()]
    query = ",".join(theirs for _, theirs in names)
    text = _smi(f"--query-gpu={query}", "--format=csv,noheader,nounits")
    rows = [[part.strip() for part in line.split(",")] for line in (text or "").splitlines() if line.strip()]
    return [
        {ours: _number(row[at]) if ours in NUMBERS else _text(row[at]) for at, (ours, _) in enumerate(names)}
        for row in rows
        if len(row) == len(names)
    ]


def _neighbours() -> list[dict[str, Any]]:
    text = _smi("--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader,nounits")
    found = []
    for line in (text or "").splitlines():
        uuid, pid, memory, name = ([part.strip() for part in line.split(",", 3)] + [""] * 4)[:4]
        if pid.isdigit():
            found.append({"uuid": uuid, "pid": int(pid), "name": _text(name), "memory_mib": _number(memory)})
    return found


def _cuda() -> str | None:
    """From the head of nvidia-smi's table: no query gives it."""
    head = _smi() or ""
    _, found, rest = head.partition("CUDA Version:")
    return rest.split()[0] if found else None


def _smi(*arguments: str) -> str | None:
    """What nvidia-smi prints; None where there is none, or it fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _number(text: str) -> int | float | None:
    """A number; None for what nvidia-smi says instead, such as ``[N/A]``."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value == int(value) else value


def _text(value: str) -> str | None:
    return None if not value or value.startswith("[") else value


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 2)
    except (ValueError, OSError):
        return None


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            parts = line.split()
            if parts[3] == LISTENING and int(parts[1].rpartition(":")[2], 16) == port:
                found.add(parts[9])
    return found


def _open_files(pid: int) -> set[str]:
    found = set()
    try:
        for place in Path("/proc", str(pid), "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(place.readlink()))
    except OSError:
        return found
    return found


def main(verb: str, *rest: str) -> int:
    """Does one verb and prints its JSON value; returns the exit status."""
    if verb == "port":
        try:
            value: Any = claim(int(rest[0]))
        except OSError as error:
            value = "it is taken" if error.errno == errno.EADDRINUSE else str(error.strerror).lower()
            sys.stdout.write(json.dumps(value) + "\n")
            return REFUSED
    elif verb == "used":
        value = used_bytes(rest[0])
    elif verb == "listens":
        value = listens(rest[0], int(rest[1]))
    elif verb == "bury":
        value = bury(rest[0], float(rest[1]))
    else:
        value = facts()
    sys.stdout.write(json.dumps(value) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
