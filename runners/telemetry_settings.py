"""What is looked at while a cell is measured, and what it must hold."""

from __future__ import annotations

from dataclasses import dataclass

from ddbench.errors import ConfigError


@dataclass(frozen=True)
class TelemetrySettings:
    """``telemetry`` of ``conf/config.yaml``, where each is described."""

    interval_s: float = 1.0
    start_temperature_c: float | None = None
    start_wait_s: float = 300.0
    client_lag_rounds: float | None = 1.0

    def __post_init__(self) -> None:
        _require("interval_s", self.interval_s, 0.05 <= self.interval_s <= 60, "seconds from 0.05 to 60")
        start = self.start_temperature_c
        _require("start_temperature_c", start, start is None or 20 <= start <= 110, "degrees from 20 to 110, or null")
        _require("start_wait_s", self.start_wait_s, 0 <= self.start_wait_s <= 86400, "seconds from 0 to 86400")
        lag = self.client_lag_rounds
        _require("client_lag_rounds", lag, lag is None or 0 < lag < float("inf"), "a number > 0, or null")


def _require(name: str, value: float | None, holds: bool, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"telemetry.{name}", value, allowed)
