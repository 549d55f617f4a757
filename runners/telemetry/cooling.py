"""The start-temperature gate: no cell begins on a GPU that an earlier one left hot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runners.telemetry.gpu import Source
from runners.telemetry_settings import TelemetrySettings

POLL_S = 1.0
TEMPERATURE = "gpu_temperature_c"


@dataclass(frozen=True)
class Start:
    """How a cell began. ``temperature_c``: of the hottest GPU; None without one that says it.

    ``waited_s``: seconds in the gate, None where none was asked for. ``problem``: why the gate did not hold.
    """

    temperature_c: float | None = None
    waited_s: float | None = None
    problem: str | None = None


def wait_until_cool(
    gpus: Sequence[Source],
    settings: TelemetrySettings,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Start:
    """Waits until every GPU is at most ``start_temperature_c`` warm, for ``start_wait_s`` seconds at most."""
    began, limit = clock(), settings.start_temperature_c
    warmth = _hottest(gpus)
    if limit is None:
        return Start(warmth)
    while warmth is not None and warmth > limit and clock() - began < settings.start_wait_s:
        sleep(POLL_S)
        warmth = _hottest(gpus)
    waited = clock() - began
    if warmth is None or warmth <= limit:
        return Start(warmth, waited)
    said = f"{warmth:g} C at the start, after {waited:.0f} s of waiting for telemetry.start_temperature_c={limit:g}"
    return Start(warmth, waited, f"the GPU was too warm: {said}")


def _hottest(gpus: Sequence[Source]) -> float | None:
    return max((found for gpu in gpus if (found := gpu.read().get(TEMPERATURE)) is not None), default=None)
