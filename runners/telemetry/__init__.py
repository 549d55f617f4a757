"""The machine while a cell runs: its GPU, its processes, and how late the client itself was (docs/telemetry.md)."""

from __future__ import annotations

from runners.loop_lag import LoopLag
from runners.telemetry.cooling import Start, wait_until_cool
from runners.telemetry.gpu import NoGpu, Source, open_source
from runners.telemetry.sampler import Sample, Telemetry
from runners.telemetry_settings import TelemetrySettings

__all__ = [
    "LoopLag",
    "NoGpu",
    "Sample",
    "Source",
    "Start",
    "Telemetry",
    "TelemetrySettings",
    "open_source",
    "wait_until_cool",
]
