"""A core apart for the threads whose time a shard measures: those that run its engines' schedulers, one at a time.

Left to itself, such a thread lands beside another busy one now and then, on the same core's other hardware thread, and
stays there for as long as it has work: the same engine's steps then take a third longer from one answer to the next.

One core serves all engines of a fleet, which take turns. What the fleet starts stays off it, and no other fleet of the
machine claims it; other programs are kept off by nobody. An aid for timing and no more: where the system refuses it,
there is a line in the log, and the engines run without.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

SIBLINGS = "/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
SCHEDULER = "sglang::scheduler"  # what SGLang calls the process
CLAIM = "\0ddbench-core-{core}"  # a name that Linux drops with the process that holds it


@contextmanager
def claimed() -> Iterator[int | None]:
    """The last core that this thread may use and no other fleet has claimed; None where there is none to spare.

    While it is open, this thread leaves all of that core's hardware threads, and so does what it starts from now on.
    """
    with ExitStack() as stack:
        yield _left(stack)


def _left(stack: ExitStack) -> int | None:
    try:
        allowed = os.sched_getaffinity(0)
        core = _claim(allowed, stack)
        if core is not None:
            os.sched_setaffinity(0, allowed - hardware_threads(core))
            stack.callback(_back, allowed)
            return core
        why = f"none to spare of {sorted(allowed)}"
    except OSError as error:
        why = str(error)
    sys.stderr.write(f"no core apart for the schedulers: {why}\n")
    return None


def _claim(allowed: Set[int], stack: ExitStack) -> int | None:
    for core in sorted(allowed, reverse=True):
        threads = hardware_threads(core)
        claim = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        if allowed - threads and _holds(claim, CLAIM.format(core=min(threads))):
            return core
    return None


def _holds(claim: socket.socket, name: str) -> bool:
    try:
        claim.bind(name)
    except OSError:
        return False
    return True


def _back(allowed: Set[int]) -> None:
    with suppress(OSError):  # cores that were taken from the program meanwhile
        os.sched_setaffinity(0, allowed)


def give(core: int, processes: Set[int]) -> bool:
    """The first thread of each of ``processes`` runs on ``core``. Whether there is one, and the system let it.

    Threads that it has by now stay where they are; those that it starts later share the core with it.
    """
    try:
        for process in processes:
            os.sched_setaffinity(process, {core})
    except OSError as error:
        sys.stderr.write(f"core {core} was not given to processes {sorted(processes)}: {error}\n")
        return False
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
    """Processes under this one that run an engine's scheduler; none where psutil is not there to say."""
    try:
        import psutil  # type: ignore[import-untyped]  # of SGLang's own environment
    except ImportError as error:
        sys.stderr.write(f"no core apart for the scheduler: {error}\n")
        return set()
    found = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a compiler that has ended meanwhile
            if " ".join(child.cmdline()).startswith(SCHEDULER):
                found.add(int(child.pid))
    return found
