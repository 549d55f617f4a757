"""A host of a list, held for one sweep by a lock on the host, which is taken again after a lost connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddbench.errors import ConfigError
from experiments.progress import warn
from runners.base import EngineFailure
from runners.hosts import Host, Process
from runners.keeper import LOCKED

HELD = ("sleep", "infinity")  # what keeps a lock on a host
SETTLE_S = 1.0  # after which a lock that is taken has been told
PATIENCE_S = 2.0  # with a look that is under way at the end
LOOK_S = 5.0  # between two looks whether the lock is still held


@contextmanager
def holding(host: Host, log: Path) -> Iterator[None]:
    """Holds a host, or those of its GPUs that may be used, while in the context.

    The lock goes with the connection. It is taken again as soon as the host answers, and where another sweep was
    faster, that is said: the two then share the host, a GPU at a time.

    Raises:
        ConfigError: another process holds it.
        HostFailure: the host is lost.
    """
    locks, over = _locks(host), threading.Event()
    process = _taken(host, log, locks)
    if process is None:
        raise ConfigError("host.hosts", host.config.member, "a host that no other process works on")
    held = [process]
    keeper = threading.Thread(target=_keep, args=(host, log, locks, held, over), name="ddbench-host", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join(PATIENCE_S)  # it may be calling a host that is away, and then ends what it starts by itself
        held[0].stop()


def _keep(host: Host, log: Path, locks: list[str], held: list[Process], over: threading.Event) -> None:
    """Replaces the one process in ``held`` whenever it has ended, until ``over``."""
    told = False
    while not over.wait(LOOK_S):
        if held[0].poll() is None:
            continue
        try:
            again = _taken(host, log, locks)
        except (EngineFailure, ConfigError):
            continue  # the host is away, which the sweep itself finds out
        if again is not None and over.is_set():
            again.stop()
        elif again is not None:
            held[0], told = again, False
        elif not told:
            told = True
            warn(f"host {host.config.member}: another sweep took it while the connection was lost; they share its GPUs")


def _taken(host: Host, log: Path, locks: list[str]) -> Process | None:
    """What holds the locks from now on; None where another has one of them. Raises HostFailure."""
    process = host.start(HELD, log=log, grace_s=0.0, locks=locks)
    if process.wait(SETTLE_S) != LOCKED:
        return process
    process.stop()
    return None


def _locks(host: Host) -> list[str]:
    """One for each GPU that may be used; of a machine without one, one for all. Raises HostFailure."""
    gpus = host.config.gpus
    indices = [gpu["index"] for gpu in host.facts()["gpus"]] if gpus is None else sorted(gpus)
    return [f"worker-gpu-{index}" for index in indices] or ["worker"]
