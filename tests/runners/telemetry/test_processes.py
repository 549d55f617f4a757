"""Load of processes: by hand, and of real ones; no time is too short for its ticks."""

from __future__ import annotations

import os
import time

import pytest

from runners.hosts import sampler
from runners.hosts.sampler import LEAST_S, Load
from runners.telemetry import Telemetry
from runners.telemetry.processes import ClientLoad, Processes


def test_a_tick_in_a_third_of_a_millisecond_is_no_load() -> None:
    """What made 8570 % of one core: the reading right after the mark saw a tick or three."""
    load = Load()
    assert load.percent({"a": 7.00}, 50.0) is None  # the mark
    assert load.percent({"a": 7.03}, 50.00035) is None
    assert load.percent({"a": 7.40}, 51.0) == pytest.approx(40.0)  # of the whole second since the mark
    assert load.percent({"a": 7.41}, 51.0 + 0.99 * LEAST_S) is None
    assert load.percent({"a": 8.40}, 52.0) == pytest.approx(100.0)


def test_a_new_process_brings_nothing_of_its_life_before() -> None:
    load = Load()
    assert load.percent({"a": 1.0}, 0.0) is None
    assert load.percent({"a": 1.5, "old": 900.0}, 1.0) == pytest.approx(50.0)
    assert load.percent({"a": 2.0, "old": 900.25}, 2.0) == pytest.approx(75.0)
    assert load.percent({"old": 900.5}, 3.0) == pytest.approx(25.0)  # one that ended counts nothing
    assert load.percent({}, 4.0) == 0.0
    assert load.percent({"a": 3.0}, 5.0) == 0.0  # one that comes again is new


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (Processes(None), "cpu_percent"),
        (Processes(os.getpid()), "cpu_percent"),
        (sampler.Processes(os.getpid()), "cpu_percent"),
        (ClientLoad(), "client_cpu_percent"),
    ],
)
def test_a_first_reading_is_a_mark_and_a_later_one_tells(
    source: Processes | sampler.Processes | ClientLoad, name: str
) -> None:
    assert name not in source.read()
    used, began = time.thread_time(), time.monotonic()
    while time.thread_time() - used < 0.05 or time.monotonic() - began < LEAST_S:
        sum(range(1000))
    assert source.read()[name] > 0


def test_the_first_sample_of_a_cell_tells_no_load_and_no_two_are_near() -> None:
    began = time.monotonic()
    with Telemetry(interval_s=0.01, pid=os.getpid()) as telemetry:
        time.sleep(3.5 * LEAST_S)
    took_s = time.monotonic() - began
    names = [name for _, name, _ in telemetry.samples]
    assert names[:2] == ["process_rss_gib"] * 2  # at the start, and again a moment later
    assert set(names) == {"process_rss_gib", "cpu_percent", "client_cpu_percent"}
    for name in ("cpu_percent", "client_cpu_percent"):
        assert 1 <= names.count(name) <= took_s / LEAST_S
