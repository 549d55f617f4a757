"""GPUs and ports of engines that are started side by side, by one program and by two."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddbench.errors import ConfigError
from experiments.evidence.places import FIRST_PORT, RUN, VISIBLE, claimed_ports, visible_gpu
from experiments.vllm_evidence.arms import Arm, Pair
from experiments.vllm_evidence.fleet import Fleet

ROOT = Path(__file__).resolve().parents[3]
HOLD = "from experiments.evidence.places import *\nwith claimed_ports(2) as p:\n print(*p, flush=True)\n input()"
TELL = """#!{python}
import os, sys
print('{{"gpu": "%s", "port": %s, "kv_tokens": 1}}' % (os.environ["{visible}"], os.environ["VLLM_PORT"]), flush=True)
sys.stdin.readline()
"""


def test_an_index_is_taken_within_what_this_program_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VISIBLE, raising=False)
    assert [visible_gpu(index) for index in (0, 1)] == ["0", "1"]
    monkeypatch.setenv(VISIBLE, "1")
    assert visible_gpu(0) == "1"
    monkeypatch.setenv(VISIBLE, "3, GPU-5a")
    assert visible_gpu(1) == "GPU-5a"
    with pytest.raises(ConfigError, match=r"gpus=3.*at most 2: CUDA_VISIBLE_DEVICES is 3, GPU-5a"):
        visible_gpu(2)
    monkeypatch.setenv(VISIBLE, "")
    assert visible_gpu(0) == ""


def test_no_two_engines_are_given_one_port() -> None:
    with claimed_ports(3) as mine:
        other = subprocess.Popen(
            [sys.executable, "-c", HOLD], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        theirs = [int(word) for word in other.stdout.readline().split()]
        with claimed_ports(2) as more:
            ports = [*mine, *theirs, *more]
        other.communicate("\n", timeout=20)
    assert len({(port - FIRST_PORT) // RUN for port in ports}) == 7
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", mine[0]))  # a claim hinders no engine
        taken.listen()
        with claimed_ports(1) as next_one:
            assert next_one[0] != mine[0]
    with pytest.raises(ConfigError, match="runs of 16 ports"), claimed_ports(100_000):
        pass


def test_engines_of_a_fleet_get_their_gpu_and_their_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(TELL.format(python=sys.executable, visible=VISIBLE))
    python.chmod(0o755)
    monkeypatch.setenv(VISIBLE, "4,7")
    pair = Pair(Path("/t"), Path("/d"), "bfloat16", False, 1024, 1.0, 0.1)
    arms = [Arm("one"), Arm("two"), Arm("three")]
    with Fleet(str(python), pair, arms, [1, 0, 1], [1], tmp_path / "logs") as fleet:
        facts = {name: engine.facts for name, engine in fleet.engines.items()}
    assert {name: found["gpu"] for name, found in facts.items()} == {"one": "7", "two": "4", "three": "7"}
    assert len({found["port"] for found in facts.values()}) == 3
