"""Readings of a GPU from what NVML and nvidia-smi said once, and none where there is no GPU."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runners.hosts import LocalHost
from runners.hosts.sampler import LEAST_S
from runners.telemetry import NoGpu, Telemetry, open_source
from runners.telemetry.gpu import Nvml, Smi


class NotSupported(Exception):
    """What NVML raises for a reading that a card does not give."""


# Raw answers of one card, in NVML's units: MHz, milliwatts, degrees, percent, bytes, a bit mask, millijoules.
RECORDED: dict[str, Any] = {
    "nvmlDeviceGetPowerUsage": 412_734,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=98, memory=57),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=150_754_820_096, used=25_769_803_776, free=124_985_016_320),
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
    "nvmlDeviceGetTotalEnergyConsumption": 88_123_456_789,
}


def recorded(**changes: Any) -> SimpleNamespace:
    """NVML as a module that repeats what was recorded; a change to None is a reading that the card does not give."""

    def answer(value: Any) -> Any:
        def asked(*_: object) -> Any:
            if value is None:
                raise NotSupported
            return value

        return asked

    clocks = {"sm": 1755, "mem": 2619}
    answers = {name: answer(value) for name, value in {**RECORDED, **changes}.items()}
    return SimpleNamespace(
        NVMLError=NotSupported,
        NVML_CLOCK_SM="sm",
        NVML_CLOCK_MEM="mem",
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetClockInfo=lambda _, kind: clocks[kind],
        **answers,
    )


def test_the_units_of_nvml() -> None:
    assert Nvml(recorded(), object()).read() == {
        "gpu_sm_clock_mhz": 1755.0,
        "gpu_mem_clock_mhz": 2619.0,
        "gpu_power_w": 412.734,
        "gpu_power_limit_w": 700.0,
        "gpu_temperature_c": 61.0,
        "gpu_utilization_percent": 98.0,
        "gpu_memory_gib": 24.0,
        "gpu_throttle_reasons": 4.0,
        "gpu_energy_j": 88_123_456.789,
    }


def test_what_a_card_does_not_give_is_left_out() -> None:
    read = Nvml(recorded(nvmlDeviceGetTotalEnergyConsumption=None, nvmlDeviceGetTemperature=None), object()).read()
    assert "gpu_energy_j" not in read
    assert "gpu_temperature_c" not in read
    assert read["gpu_power_w"] == 412.734


def smi(folder: Path, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program ``nvidia-smi`` that prints what a real one printed."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!{sys.executable}\nimport sys\nassert '--id=0' in sys.argv\nprint({says!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, "1755, 2619, 412.73, 700.00, 61, 98, 24576, 0x0000000000000004", monkeypatch)
    read = Smi(LocalHost(), 0).read()
    assert read["gpu_power_w"] == 412.73
    assert read["gpu_memory_gib"] == 24.0
    assert read["gpu_throttle_reasons"] == 4.0
    assert "gpu_energy_j" not in read


def test_nvidia_smi_without_a_power_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, "1755, 2619, [N/A], [N/A], 61, 98, 24576, 0x0000000000000000", monkeypatch)
    read = Smi(LocalHost(), 0).read()
    assert "gpu_power_w" not in read
    assert read["gpu_temperature_c"] == 61.0


def test_without_a_gpu_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    assert NoGpu().read() == {}
    assert isinstance(open_source(99), NoGpu)  # no machine has so many
    with Telemetry(99, interval_s=0.05) as telemetry:
        time.sleep(2 * LEAST_S)  # in less no load is told
    assert {name for _, name, _ in telemetry.samples} == {"process_rss_gib", "cpu_percent"}
