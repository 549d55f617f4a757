"""A core of its own for the thread whose time a shard measures: the one that runs an engine's scheduler.

Left to itself, such a thread lands beside another busy one now and then, on the same core's other hardware thread, and
stays there for as long as it has work: the same engine's steps then take a third longer from one answer to the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path

SIBLINGS = "/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
SCHEDULER = "sglang::scheduler"  # what SGLang calls the process


def reserve() -> int | None:
    """The last core that this process may use, which it leaves, and all that it starts from now on.

    None where no other core would be left.
    """
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    others = allowed - hardware_threads(core)
    if not others:
        return None
    os.sched_setaffinity(0, others)
    return core


def give(core: int, processes: Set[int]) -> bool:
    """The first thread of each of ``processes`` runs on ``core``; threads that these have beside it stay away.

    Whether there is one.
    """
    for process in processes:
        os.sched_setaffinity(process, {core})
    return bool(processes)


def hardware_threads(core: int, read: Callable[[str], str] | None = None) -> set[int]:
    """Those of the same physical core, ``core`` among them; ``core`` alone where the system does not say."""
    path = SIBLINGS.format(core=core)
    try:
        text = Path(path).read_text() if read is None else read(path)
    except OSError:
        return {core}
    found = {core}
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def schedulers() -> set[int]:
    """Processes under this one that run an engine's scheduler."""
    import psutil  # type: ignore[import-untyped]  # of SGLang's own environment

    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a compiler that has ended meanwhile
            if " ".join(child.cmdline()).startswith(SCHEDULER):
                found.add(int(child.pid))
    return found
