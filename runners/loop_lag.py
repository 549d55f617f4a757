"""How late an event loop is: what of a client's clocks is its own doing."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

EVERY_S = 0.01
SHARE = 0.05  # of the moments
NAME = "client_lag_ms"


@dataclass
class LoopLag:
    """Seconds after which the loop had time for something that was due, at moments ``EVERY_S`` apart.

    The moments lie on a grid of time: a loop that was busy over several of them is late at each, so that every second
    counts the same, however little was done in it. Waking itself takes up to a millisecond.
    """

    late_s: list[float] = field(default_factory=list)

    async def watch(self) -> None:
        """Takes a reading at every moment until it is cancelled."""
        due_s = time.perf_counter() + EVERY_S
        while True:
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
            now_s = time.perf_counter()
            while due_s <= now_s:
                self.late_s.append(now_s - due_s)
                due_s += EVERY_S

    def quantile(self, share: float) -> float | None:
        """The lag that this share of the moments did not exceed; None without a reading."""
        ordered = sorted(self.late_s)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None

    def samples(self, every_s: float) -> list[tuple[float, str, float]]:
        """For telemetry: the most of each ``every_s`` seconds in milliseconds, at their end, from the start on."""
        size = max(round(every_s / EVERY_S), 1)
        parts = [self.late_s[start : start + size] for start in range(0, len(self.late_s), size)]
        return [((index * size + len(part)) * EVERY_S, NAME, 1000 * max(part)) for index, part in enumerate(parts)]

    def described(self) -> dict[str, float | None]:
        """Milliseconds, for the notes of a cell: mean, the value that 5 % of the moments exceed, and the most."""
        late = self.late_s
        mean_s = sum(late) / len(late) if late else None
        found = {"mean": mean_s, "p95": self.quantile(1 - SHARE), "max": max(late, default=None)}
        return {name: None if value is None else round(1000 * value, 3) for name, value in found.items()}

    def problem(self, round_s: float, limit: float | None) -> str | None:
        """Why the client was too late for rounds of ``round_s`` seconds; None if it was not.

        ``limit``: rounds that the loop may be late at all but 5 % of the moments; None: it is not looked at.
        """
        lag_s = self.quantile(1 - SHARE)
        if limit is None or lag_s is None or lag_s <= limit * round_s:
            return None
        return (
            f"the client was late: at {SHARE:.0%} of the moments its event loop was more than {1000 * lag_s:.1f} ms "
            f"behind, and a round took {1000 * round_s:.1f} ms (telemetry.client_lag_rounds={limit:g})"
        )
