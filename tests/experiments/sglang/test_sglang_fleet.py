"""What engines of a fleet are started with: GPUs of their ranks, and cores; processes of a made-up SGLang say it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ddbench.errors import ConfigError
from experiments.evidence.places import VISIBLE
from experiments.sglang_evidence import cores, tiny_checks
from experiments.sglang_evidence.arms import Arm, Pair
from experiments.sglang_evidence.cores import hardware_threads
from experiments.sglang_evidence.fleet import Fleet
from experiments.sglang_evidence.job import Job

PAIR = Pair(Path("/t"), Path("/d"), Path("/e"), "bfloat16", False, 1024, 4096)
MADE_UP = """
import asyncio, os, subprocess

__version__ = "0"


class Engine:
    def __init__(self, **settings):
        self.loop = asyncio.new_event_loop()
        named = ["sglang::scheduler", "60"]
        self.ranks = [subprocess.Popen(named, executable="/bin/sleep") for _ in range(settings.get("tp_size", 1))]

    def get_server_info(self):
        ranks = [sorted(os.sched_getaffinity(each.pid)) for each in self.ranks]
        own = sorted(os.sched_getaffinity(0))
        return {"visible": os.environ["CUDA_VISIBLE_DEVICES"], "own": own, "ranks": ranks}

    def shutdown(self):
        for each in self.ranks:
            each.kill()
        self.loop.close()
"""


@pytest.fixture(autouse=True)
def own_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run beside this one claim cores of the same machine."""
    monkeypatch.setattr(cores, "CLAIM", cores.CLAIM + f"-{os.getpid()}")


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sglang.py").write_text(MADE_UP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(VISIBLE, "4,7")
    return tmp_path / "logs"


def told(fleet: Fleet) -> dict[str, Any]:
    assert fleet.failed == {}
    return {name: answer["info"] for name, answer in fleet.ask_all(lambda engine: {"verb": "info"}).items()}


def test_an_arm_of_two_ranks_sees_two_gpus_and_shares_no_core(logs: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    arms = [Arm("second"), Arm("both", ranks=2), Arm("first")]
    with Fleet(sys.executable, PAIR, arms, [1], logs, gpus=[1, 0, 0], own_core=True) as fleet:
        found = told(fleet)
        assert fleet.cores() == {"kept_off": [], "given": dict.fromkeys(found)}
    assert {name: one["visible"] for name, one in found.items()} == {"second": "7", "both": "4,7", "first": "4"}
    assert {name: one["ranks"] for name, one in found.items()} == {
        "second": [allowed],
        "both": [allowed, allowed],
        "first": [allowed],
    }


def test_schedulers_of_timed_engines_take_turns_on_a_core_apart(logs: Path) -> None:
    allowed = os.sched_getaffinity(0)
    threads = hardware_threads(max(allowed))
    if not allowed - threads:
        pytest.skip("a machine of one core")
    with Fleet(sys.executable, PAIR, [Arm("one"), Arm("other")], [1], logs, own_core=True) as fleet:
        found = told(fleet)
        given = dict.fromkeys(found, max(allowed))
        assert fleet.cores() == {"kept_off": sorted(threads), "given": given}
    for one in found.values():
        assert one["own"] == sorted(allowed - threads)
        assert one["ranks"] == [[max(allowed)]]
    assert os.sched_getaffinity(0) == allowed


def test_more_ranks_than_gpus_are_refused_before_a_start(logs: Path) -> None:
    with (
        pytest.raises(ConfigError, match="gpus=3: at most 2"),
        Fleet(sys.executable, PAIR, [Arm("both", ranks=2)], [1], logs, gpus=[1]),
    ):
        raise AssertionError
    job = Job("tiny_checks", sys.executable, logs, [], "float32", ["ddtree_tp2"], [1], 1, 1, logs, 60.0, print)
    with pytest.raises(ConfigError, match=r"gpus=1\b.*2 at least: ddtree_tp2"):
        tiny_checks.measure(job)
