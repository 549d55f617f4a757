"""The start-temperature gate: how long it waits, and what it says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ddbench.errors import ConfigError
from runners.base import CellOutcome
from runners.telemetry import NoGpu, Start, TelemetrySettings, wait_until_cool
from runners.telemetry.outcome import noted


@dataclass
class Cooling:
    """A GPU that cools by a degree a second, and the clock by which it does."""

    warmth_c: float
    now_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def read(self) -> dict[str, float]:
        return {"gpu_temperature_c": self.warmth_c - self.now_s}

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def start(gpu: Cooling, limit: float | None, wait_s: float = 300.0, others: int = 0) -> Start:
    settings = TelemetrySettings(start_temperature_c=limit, start_wait_s=wait_s)
    return wait_until_cool([*[NoGpu()] * others, gpu], settings, clock=gpu.clock, sleep=gpu.sleep)


def test_it_waits_until_the_gpu_is_cool() -> None:
    assert start(Cooling(75.0), 60.0) == Start(60.0, 15.0)


def test_a_cool_gpu_does_not_wait() -> None:
    gpu = Cooling(55.0)
    assert start(gpu, 60.0) == Start(55.0, 0.0)
    assert gpu.slept == []


def test_without_a_limit_the_temperature_is_noted_alone() -> None:
    gpu = Cooling(90.0)
    assert start(gpu, None) == Start(90.0, None)
    assert gpu.slept == []


def test_the_wait_has_an_end_and_the_cell_says_so() -> None:
    begun = start(Cooling(90.0), 60.0, wait_s=10.0, others=1)
    assert (begun.temperature_c, begun.waited_s) == (80.0, 10.0)
    outcome = noted(CellOutcome("ok", None), begun)
    assert outcome.status == "suspect"
    assert outcome.reason == (
        "the GPU was too warm: 80 C at the start, after 10 s of waiting for telemetry.start_temperature_c=60"
    )
    assert (outcome.start_temperature_c, outcome.cooling_s) == (80.0, 10.0)


def test_a_machine_without_a_gpu_does_not_wait() -> None:
    assert wait_until_cool([NoGpu()], TelemetrySettings(start_temperature_c=40.0)).temperature_c is None
    assert wait_until_cool([], TelemetrySettings()) == Start(None, None)


def test_doubts_are_added_and_a_failure_stays_one() -> None:
    begun = Start(50.0, 0.0)
    assert noted(CellOutcome("ok", None), begun, None).status == "ok"
    assert noted(CellOutcome("suspect", "a"), begun, "b", None).reason == "a; b"
    failed = noted(CellOutcome("failed", "a"), begun, "b")
    assert (failed.status, failed.reason, failed.start_temperature_c) == ("failed", "a", 50.0)


@pytest.mark.parametrize("value", [0.0, float("nan"), 61.0])
def test_an_interval_that_cannot_be(value: float) -> None:
    with pytest.raises(ConfigError, match=r"telemetry.interval_s"):
        TelemetrySettings(interval_s=value)
