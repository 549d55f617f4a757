"""How late the client's event loop was, measured on a real one, and when that makes a cell suspect."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import streams

from runners.load import ClosedLoop, run_load
from runners.loop_lag import EVERY_S, LoopLag
from runners.telemetry.late import late_client


async def watched(busy_s: float, times: int) -> LoopLag:
    """A loop that is held up ``times`` times for ``busy_s`` seconds, with as long a rest after each."""
    lag = LoopLag()
    watch = asyncio.create_task(lag.watch())
    for _ in range(times):
        await asyncio.sleep(max(busy_s, 0.05))
        time.sleep(busy_s)
    await asyncio.sleep(0.05)
    watch.cancel()
    return lag


def test_a_loop_that_is_held_up_is_late_at_every_moment_of_it() -> None:
    lag = asyncio.run(watched(0.2, 3))
    assert 0.15 < max(lag.late_s) < 0.6
    late = [each for each in lag.late_s if each > EVERY_S]
    assert len(late) >= 3 * (0.2 / EVERY_S) * 0.8  # not one reading a hold-up, but one each hundredth of a second
    assert 0.4 * 0.2 < sum(late) / len(late) < 1.5 * 0.2
    said = lag.problem(round_s=0.02, limit=1.0)
    assert said is not None
    assert said.startswith("the client was late: at 5% of the moments its event loop was more than ")
    assert said.endswith("behind, and a round took 20.0 ms (telemetry.client_lag_rounds=1)")
    assert lag.problem(round_s=0.0, limit=1.0) is not None  # of events that all came at one moment
    assert lag.problem(round_s=10.0, limit=1.0) is None
    assert lag.problem(round_s=0.02, limit=None) is None


def test_quantiles() -> None:
    lag = LoopLag([0.001] * 94 + [0.5] * 6)
    assert lag.quantile(0.95) == 0.5
    assert lag.described() == {"mean": 30.94, "p95": 500.0, "max": 500.0}
    assert LoopLag([0.001] * 96 + [0.5] * 4).quantile(0.95) == 0.001
    assert LoopLag().quantile(0.95) is None
    assert LoopLag().described() == {"mean": None, "p95": None, "max": None}
    assert LoopLag().problem(0.001, 1.0) is None


def test_readings_for_telemetry() -> None:
    lag = LoopLag([0.001] * 60 + [0.25] + [0.002] * 89)
    first, second = lag.samples(1.0)
    assert first == (pytest.approx(1.0), "client_lag_ms", 250.0)
    assert second == (pytest.approx(1.5), "client_lag_ms", 2.0)
    assert LoopLag().samples(1.0) == []


@pytest.mark.parametrize(("hold_s", "late"), [(0.0, False), (0.25, True)])
def test_a_load_whose_client_is_held_up(tmp_path: Path, hold_s: float, late: bool) -> None:
    """Rounds of the server take 0.02 s; what is done at the end of each request holds up the client's loop."""
    requests = [streams.request(streams.SLOW, 12)] * 6
    with streams.stream_server(tmp_path) as server:
        result = run_load(
            server.base_url, "m", requests, ClosedLoop(2), timeout_s=20, on_finish=lambda *_: time.sleep(hold_s)
        )
    assert all(each.error is None for each in result.completions)
    assert result.lag.late_s
    limit = 1.0 if late else 25.0  # a test machine may be busy
    assert (late_client(result, limit) is not None) == late
