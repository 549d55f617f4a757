"""Ctrl-C and SIGTERM as an exception that ends a sweep in good order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ECHO_S = 1.0  # a repeat within this time is an echo: `timeout` and shells signal a process and its group


class Interrupted(KeyboardInterrupt):
    """The first SIGINT or SIGTERM. A second one ends the process at once."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns the first SIGINT or SIGTERM into :class:`Interrupted`; puts the handlers back at the end."""
    caught = (signal.SIGINT, signal.SIGTERM)

    def handle(number: int, _: FrameType | None) -> None:
        first = time.monotonic()

        def again(number: int, _: FrameType | None) -> None:
            if time.monotonic() - first < ECHO_S:
                return
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        for each in caught:
            signal.signal(each, again)
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
