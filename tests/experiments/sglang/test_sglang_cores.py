"""The core that a timed engine's scheduler has to itself."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from experiments.sglang_evidence.cores import hardware_threads


@pytest.mark.parametrize(("told", "threads"), [("3\n", {3}), ("2-3\n", {2, 3}), ("3,19\n", {3, 19}), ("3", {3})])
def test_hardware_threads(told: str, threads: set[int]) -> None:
    assert hardware_threads(3, read=lambda path: told) == threads


def test_a_system_that_does_not_say() -> None:
    def absent(path: str) -> str:
        raise FileNotFoundError(path)

    assert hardware_threads(3, read=absent) == {3}


SCRIPT = """
import json, os, subprocess
from experiments.sglang_evidence import cores

allowed = os.sched_getaffinity(0)
cores.hardware_threads = lambda core, read=None: {core}
core = cores.reserve()
child = subprocess.Popen(["sleep", "30"])
named = subprocess.Popen(["sglang::scheduler", "30"], executable="/bin/sleep")
found = cores.schedulers()
if core is not None:
    cores.give(core, found)
print(json.dumps({
    "allowed": sorted(allowed), "core": core, "own": sorted(os.sched_getaffinity(0)),
    "child": sorted(os.sched_getaffinity(child.pid)), "scheduler": sorted(os.sched_getaffinity(named.pid)),
    "found": found == {named.pid},
}))
child.kill(); named.kill()
"""


def test_the_scheduler_alone_is_given_the_core() -> None:
    """Real processes, one of them by the scheduler's name; on a machine of one core nothing is reserved."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    told = json.loads(done.stdout)
    assert told["found"]
    if len(told["allowed"]) == 1:
        assert told["core"] is None
        return
    rest = told["allowed"][:-1]
    assert told["core"] == told["allowed"][-1]
    assert told["own"] == told["child"] == rest
    assert told["scheduler"] == [told["core"]]
