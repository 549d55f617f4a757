"""The core apart that a timed fleet's schedulers take turns on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from experiments.sglang_evidence import cores
from experiments.sglang_evidence.cores import hardware_threads


@pytest.fixture(autouse=True)
def own_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run beside this one claim cores of the same machine."""
    monkeypatch.setattr(cores, "CLAIM", cores.CLAIM + f"-{os.getpid()}")


@pytest.fixture
def spare() -> int:
    """The core that a fleet is to get here."""
    allowed = os.sched_getaffinity(0)
    if not allowed - hardware_threads(max(allowed)):
        pytest.skip("a machine of one core")
    return max(allowed)


@pytest.mark.parametrize(("told", "threads"), [("3\n", {3}), ("2-3\n", {2, 3}), ("3,19\n", {3, 19}), ("3", {3})])
def test_hardware_threads(told: str, threads: set[int]) -> None:
    assert hardware_threads(3, read=lambda path: told) == threads


def test_a_system_that_does_not_say() -> None:
    def absent(path: str) -> str:
        raise FileNotFoundError(path)

    assert hardware_threads(3, read=absent) == {3}


def test_all_that_is_started_stays_off_the_core_and_it_is_given_back(spare: int) -> None:
    allowed = os.sched_getaffinity(0)
    rest = allowed - hardware_threads(spare)
    for _ in range(2):  # the claim goes with the context
        with cores.claimed() as core, subprocess.Popen(["sleep", "30"]) as child:
            try:
                assert core == spare
                assert os.sched_getaffinity(0) == os.sched_getaffinity(child.pid) == rest
                assert cores.give(core, {child.pid})
                assert os.sched_getaffinity(child.pid) == {core}
                assert os.sched_getaffinity(0) == rest
            finally:
                child.kill()
        assert os.sched_getaffinity(0) == allowed


def test_another_program_does_not_get_the_same_core(spare: int) -> None:
    code = "import os\nfrom experiments.sglang_evidence import cores\n"
    code += f"cores.CLAIM = {cores.CLAIM!r}\nos.sched_setaffinity(0, {os.sched_getaffinity(0)})\n"
    code += "with cores.claimed() as core: print(core)"
    with cores.claimed():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() not in ("", str(spare))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == str(spare)


@pytest.mark.parametrize("error", [PermissionError("not permitted"), OSError("invalid argument")])
def test_a_system_that_refuses(
    error: OSError, spare: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(process: int, threads: set[int]) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", refuse)
        with cores.claimed() as core:
            assert core is None
        assert not cores.give(spare, {os.getpid()})
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"no core apart for the schedulers: {error}",
        f"core {spare} was not given to processes [{os.getpid()}]: {error}",
    ]


def test_a_scheduler_that_has_ended_and_none_at_all(spare: int) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not cores.give(spare, {ended.pid})
    assert not cores.give(spare, set())
    with subprocess.Popen(["sleep", "30"]) as child:
        assert not cores.give(100_000, {child.pid})  # no such core
        child.kill()


def test_a_scheduler_is_known_by_its_name() -> None:
    with (
        subprocess.Popen(["sleep", "30"]) as other,
        subprocess.Popen(["sglang::scheduler", "30"], executable="/bin/sleep") as named,
    ):
        found = cores.schedulers()
        other.kill()
        named.kill()
    assert found == {named.pid}
