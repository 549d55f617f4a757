"""The benchmark of the client's cost: it runs, its engine keeps its beat, and its figures are those of its clocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from runners.client import Completion
from runners.completions import TokenRequest
from runners.load import LoadResult

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks" / "client_cost.py"


def load() -> Any:
    spec = spec_from_file_location("client_cost", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def completion(*times: float) -> Completion:
    request = TokenRequest((1,), len(times))
    one = (1,) * len(times)
    return Completion(request, one, times, one, 0.0, times[0], times[-1], "length", 1, 0, None, None)


def test_added_and_delay_by_hand() -> None:
    cost = load()
    done = LoadResult((completion(1.01, 2.03, 3.05), completion(1.0, 3.0)), (0.0, 0.0), 0.0, 4.0, 2)
    clocks = {
        "requests": {"0": [0.0, [1.0, 2.0, 3.0]], "1": [0.0, [1.0, 3.0]]},
        "beats": [[1.0, 2], [2.0, 1], [3.0, 2]],
    }
    assert cost.added_of(done, clocks) == [pytest.approx(0.02), pytest.approx(0.0)]
    assert cost.delays_of(done, clocks) == [pytest.approx(each) for each in (0.01, 0.03, 0.05, 0.0, 0.0)]
    assert cost.beat_of(clocks) == 1.0


def test_idle_places_by_hand() -> None:
    cost = load()
    beats = [[1.0, 3], [2.0, 4], [3.0, 2], [4.0, 3], [5.0, 1]]
    requests = {"0": [0.5, []], "1": [4.5, []]}  # the last one came at 4.5: what follows is the end of the load
    assert cost.idle_of({"requests": requests, "beats": beats}, 4) == pytest.approx(1 - (4 + 2 + 3) / 3 / 4)
    assert cost.idle_of({"requests": requests, "beats": beats}, 9) is None


def test_it_runs_for_both_wires() -> None:
    small = ["--in-flight", "8", "--requests", "16", "--rounds", "10", "--repeats", "1", "--round-ms", "10", "0"]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *small],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert {(row["wire"], row["round_ms"]) for row in rows} == {
        (wire, beat) for wire in ("vllm", "sglang") for beat in (10.0, 0.0)
    }
    for row in rows:
        assert row["tokens_per_s"] > 0
        assert row["binds_at"] >= row["tokens_per_s"]
        assert 0 < row["processor"] <= 1.5
        if row["round_ms"]:
            assert row["delay_p50"] > 0  # the client's clock is after the engine's
            assert row["beat"] >= 0.95
            assert row["tokens_per_s"] <= 8 * 4 / 0.010 * 1.05  # no faster than the engine's beat allows
        else:
            assert row["added"] is None
