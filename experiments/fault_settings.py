"""Group ``faults``: what is done when something breaks, and between processes."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.ranges import require


@dataclass(frozen=True)
class FaultSettings:
    """What is done when something breaks, and when several processes work in one run folder (docs/faults.md)."""

    retries: int = 1
    retry_wait_s: float = 5.0
    heartbeat_s: float = 10.0
    stale_s: float = 120.0
    wait: bool = True
    gpu_wait_s: float = 43200.0
    host_wait_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("gpu_wait_s", "host_wait_s", "retry_wait_s", "heartbeat_s", "stale_s"):
            require(f"faults.{name}", [getattr(self, name)], lambda v: 0 <= v < 3e7, "seconds >= 0, below a year")
        require("faults.retries", [self.retries], lambda v: 0 <= v <= 1000, "an integer from 0 to 1000")
        require("faults.heartbeat_s", [self.heartbeat_s], lambda v: v > 0, "seconds > 0")
        beat = self.heartbeat_s
        require("faults.stale_s", [self.stale_s], lambda v: v >= 3 * beat, "at least three times faults.heartbeat_s")
