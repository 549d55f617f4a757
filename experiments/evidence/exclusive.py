"""One timed measurement at a time on a machine."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ddbench.errors import ConfigError
from experiments.progress import say

LOCK = Path(tempfile.gettempdir()) / "ddbench-timed.lock"
POLL_S = 1.0


@contextlib.contextmanager
def alone(limit_s: float, lock: Path = LOCK) -> Iterator[float]:
    """Holds the machine's lock for timed work; gives the seconds that were spent on waiting for it.

    Two programs that time engines on one GPU would both measure the other.

    Raises:
        ConfigError: another program held it for ``limit_s`` seconds.
    """
    began = time.monotonic()
    with lock.open("a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - began
                if waited >= limit_s:
                    allowed = f"one timed shard at a time: another held {lock} for {waited:.0f} s"
                    raise ConfigError("shard", None, allowed) from None
                if waited < POLL_S:
                    say(f"another timed shard holds {lock}: waiting")
                time.sleep(POLL_S)
        yield time.monotonic() - began
