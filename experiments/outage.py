"""A host that goes away under a sweep: the sweep waits for it, and calls no cell failed because of it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ddbench.errors import Broken, ConfigError
from experiments.interrupt import Stop
from experiments.progress import duration, say, warn
from runners.base import EngineFailure
from runners.hosts import HostConfig, host_of

FIRST_POLL_S, LONGEST_POLL_S = 1.0, 30.0  # between two calls; each wait is twice the one before
SAID_S = 60.0  # how often a wait is spoken of
POLL_S = 0.1


class HostAway(Broken):
    """The host does not come back: the sweep ends here, and goes on with its ``run_id`` once the host is there."""


@dataclass(frozen=True)
class Outage:
    """What is done when the host of a sweep is gone. ``wait_s``: the longest wait for it.

    This machine (``host`` None, or a local one) is never gone.
    """

    host: HostConfig | None = None
    wait_s: float = 1800.0

    @property
    def remote(self) -> bool:
        return self.host is not None and self.host.kind != "local"

    def silence(self) -> str | None:
        """Why the host does not answer, in words; None if it does."""
        if self.host is None or not self.remote:
            return None
        try:
            host_of(self.host).run(["true"], timeout_s=self.host.connect_timeout_s)
        except (EngineFailure, ConfigError) as error:
            return str(error)
        return None

    def wait(self, stop: Stop) -> bool:
        """Returns once the host answers, at once if it does: whether it was gone. Ends early where ``stop`` was asked.

        Raises:
            HostAway: it has not come back in ``wait_s`` seconds.
        """
        began = said = time.monotonic()
        pause, why = FIRST_POLL_S, self.silence()
        if why is None:
            return False
        warn(f"{why}; waiting for the host, {duration(self.wait_s)} at most (faults.host_wait_s)")
        while stop.asked is None:
            left = began + self.wait_s - time.monotonic()
            if left <= 0:
                raise HostAway(f"the host did not come back in {duration(self.wait_s)} (faults.host_wait_s): {why}")
            _sleep(min(pause, left), stop)
            pause = min(2 * pause, LONGEST_POLL_S)
            why = self.silence()
            now = time.monotonic()
            if why is None:
                say(f"the host answers again, after {duration(now - began)}: going on")
                break
            if now - said >= SAID_S:
                said = now
                say(f"the host has been away for {duration(now - began)}: {why}")
        return True


def _sleep(seconds: float, stop: Stop) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and stop.asked is None:
        time.sleep(min(left, POLL_S))
