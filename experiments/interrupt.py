"""Ctrl-C, SIGTERM, SIGHUP: the first Ctrl-C lets the running cell end, all else ends the work at once, in good order.

Once the engine is being stopped, the first signal of any kind lets that end.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from experiments.progress import say

ECHO_S = 1.0  # a repeat within this time is an echo: `timeout` and shells signal a process and its group


class Interrupted(KeyboardInterrupt):
    """A SIGINT, SIGTERM or SIGHUP that ends the work at once. One more ends the process."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Stop:
    """Whether the work is to end. In :meth:`patiently` and :meth:`ending`, a first signal only says so here, in
    ``asked``, and what is gone on with to its end in ``awaited``, a clause without its "is" or "was"."""

    def __init__(self) -> None:
        self.asked: str | None = None  # the signal's name
        self.awaited = ""
        self._patient: dict[int, str] = {}

    @contextmanager
    def patiently(self) -> Iterator[None]:
        """For work that is worth ending: a first SIGINT raises nothing in here."""
        with self._waiting("the running cell {} finished", signal.SIGINT):
            yield

    @contextmanager
    def ending(self) -> Iterator[None]:
        """For stopping the engine, which ends soon and must: a first signal of any kind raises nothing in here."""
        with self._waiting("the engine {} stopped", signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            yield

    @contextmanager
    def _waiting(self, awaited: str, *signals: int) -> Iterator[None]:
        self._patient = dict.fromkeys(signals, awaited)
        try:
            yield
        finally:
            self._patient = {}

    def waits(self, number: int) -> bool:
        """Takes a signal: whether the work may go on to its end."""
        if number in self._patient and self.asked is None:
            self.asked, self.awaited = signal.Signals(number).name, self._patient[number]
            return True
        return False


@contextmanager
def interruptible(then: str = "the report is written") -> Iterator[Stop]:
    """Turns SIGINT, SIGTERM and SIGHUP into :class:`Interrupted`; puts the handlers back at the end. ``then``: what
    follows on work that a first signal lets end.

    SIGHUP, by which a terminal says that it is closed, stays ignored where it is (``nohup``).

    Of signals within a second of each other the later ones are echoes. After Interrupted the next signal has its usual
    effect. Outside the main thread, where Python has no handlers, signals are left as they are.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    caught = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        caught.append(signal.SIGHUP)
    last = -ECHO_S

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last < ECHO_S:
            return
        last = time.monotonic()
        if stop.waits(number):
            say(f"{stop.asked}: {stop.awaited.format('is')}, then {then}; once more to stop now")
            return
        for each in caught:
            signal.signal(each, again)
        raise Interrupted(signal.Signals(number).name)

    def again(number: int, _: FrameType | None) -> None:
        if time.monotonic() - last < ECHO_S:
            return
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {number: signal.signal(number, handle) for number in caught}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
