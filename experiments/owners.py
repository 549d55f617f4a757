"""Who a process is, so that others can tell whether it still lives."""

from __future__ import annotations

import os
import platform
import secrets
from dataclasses import dataclass
from pathlib import Path

import psutil

from runners.places import place

START_FIELD = 21  # of /proc/<pid>/stat, from 0: clock ticks from the boot to the start, see proc(5)


@dataclass(frozen=True)
class Owner:
    """A process of some host. ``place`` is the same for processes that can see each other: one boot, one PID namespace.

    ``start`` tells two processes of one number apart, and does not change with the wall clock. ``token`` is random.
    """

    host: str
    place: str
    pid: int
    start: str
    token: str

    @property
    def name(self) -> str:
        """For the names of files."""
        return f"{self.host}-{self.place}-{self.pid}-{self.start}-{self.token}"

    @classmethod
    def from_name(cls, name: str) -> Owner | None:
        """The owner of that name; None if it is no owner's."""
        host, *rest = name.rsplit("-", 4)
        if len(rest) != 4 or not rest[1].isdecimal():
            return None
        return cls(host, rest[0], int(rest[1]), rest[2], rest[3])

    def seen_dead(self) -> bool:
        """Whether it has ended for certain; False for one that cannot be seen from here."""
        return self.place == place() and process_start(self.pid) != self.start


def this_process() -> Owner:
    """The owner that this process is, with a new token."""
    return Owner(platform.node(), place(), os.getpid(), process_start(os.getpid()) or "", secrets.token_hex(4))


def process_start(pid: int) -> str | None:
    """When a process began, in units that only compare with each other; None if none of that number runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _elsewhere(pid)
    except OSError:
        return None
    state, start = fields[0], fields[START_FIELD - 2]  # the two fields up to the name are cut off
    return None if state in ("Z", "X") else start


def _elsewhere(pid: int) -> str | None:
    """Like :func:`process_start`, on a system without /proc."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None
