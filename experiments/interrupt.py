"""Ctrl-C and SIGTERM as an exception that ends a sweep in good order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
        for each in caught:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
