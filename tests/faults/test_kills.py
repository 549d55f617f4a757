"""SIGKILL at twenty-one points along one sweep, and what is left by each; an engine that hangs or does not start."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
from sweeps import CELLS, Process, Sweeps, finished, gone, ports, statuses, wait_for

# Of each of seven starts: seconds from the moment when it is at a cell to the death of its engine, and of the next
# engine's keeper; then how many cells it may finish, and the seconds from there to the death of the client itself. They
# are spread over requests, the storing of cells, and starts of the engine.
POINTS = [
    (0.0, 0.1, 0, 0.0),
    (0.05, 0.0, 0, 0.3),
    (0.15, 0.2, 1, 0.0),
    (0.02, 0.3, 0, 0.15),
    (0.3, 0.05, 1, 0.01),
    (0.1, 0.25, 1, 0.05),
    (0.2, 0.02, 1, 0.1),
]


def at_a_cell(process: Process, folder: Path) -> psutil.Process:
    """The engine of a process that measures."""
    wait_for(lambda: process.measures(folder))
    return process.engines()[0]


def test_twenty_kills_and_the_run_is_whole(sweeps: Sweeps) -> None:
    folder = sweeps.path("killed")
    kills = 0
    for engine_s, keeper_s, cells, client_s in POINTS:
        process = sweeps.start("killed", "faults.retries=9")
        engine = at_a_cell(process, folder)
        time.sleep(engine_s)
        engine.kill()
        gone(engine)
        engine = at_a_cell(process, folder)
        time.sleep(keeper_s)
        keeper = engine.parent()
        assert keeper is not None
        keeper.kill()
        gone(keeper, engine)
        at_a_cell(process, folder)
        before = finished(folder)
        wait_for(lambda: finished(folder) >= before + cells)  # noqa: B023
        time.sleep(client_s)
        assert process.poll() is None, "the sweep was over before it was killed"
        relatives, listening = process.family(), ports(process.family())
        process.kill()
        kills += 3
        gone(*relatives)
        for port in listening:
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert kills > 20
    assert 0 < finished(folder) < CELLS
    code, summary, err = sweeps.run("killed", "faults.retries=9")
    assert code == 0, err
    assert summary["cells"] == {"ok": CELLS, "unsupported": 0, "failed": 0, "suspect": 0}
    assert sweeps.content("killed") == sweeps.content("whole")
    assert not (folder / ".claims").exists()
    assert not (folder / ".running").exists()


def test_tries_are_bounded_and_logged_and_one_failing_cell_stops_no_other(sweeps: Sweeps) -> None:
    folder = sweeps.path("bounded")
    process = sweeps.start("bounded", "faults.retries=0", "engine.stall_timeout_s=1")
    engine = at_a_cell(process, folder)
    time.sleep(0.05)
    engine.kill()
    wait_for(lambda: finished(folder) >= 2)
    stopped = at_a_cell(process, folder)
    stopped.suspend()
    code, summary, err = process.end()
    gone(engine, stopped)
    assert code == 1, err
    assert summary["cells"] == {"ok": CELLS - 2, "unsupported": 0, "failed": 2, "suspect": 0}
    failed = {status["kind"]: status for status in statuses(folder) if status["status"] == "failed"}
    assert failed.keys() == {"died", "hang"}
    assert "signal 9" in failed["died"]["reason"]
    assert failed["hang"]["reason"].startswith("the engine hangs: no token for 1 s with ")
    for status in failed.values():
        assert status["attempts"] == []
        assert "listening" in (folder / status["log"]).read_text()

    process = sweeps.start("bounded", "retry_failed=true", "engine.stall_timeout_s=1")
    at_a_cell(process, folder).suspend()
    code, summary, err = process.end()
    assert code == 0, err
    assert sweeps.content("bounded") == sweeps.content("whole")
    (tried,) = (status for status in statuses(folder) if status["attempts"])
    (attempt,) = tried["attempts"]
    assert attempt["kind"] == "hang"
    assert "listening" in (folder / attempt["log"]).read_text()
    assert "the engine hangs" in err
    assert "; try 2 of 2" in err


def test_out_of_memory_is_final_names_the_setting_and_stops_no_other_cell(sweeps: Sweeps) -> None:
    code, summary, err = sweeps.run("hungry", "sweep.depth=[5,3]", "sweep.batch_size=[1]")
    assert code == 1, err
    assert summary["cells"] == {"ok": 2, "unsupported": 0, "failed": 1, "suspect": 0}
    (failed,) = (status for status in statuses(sweeps.path("hungry")) if status["status"] == "failed")
    assert (failed["kind"], failed["attempts"]) == ("memory", [])  # it would come back
    assert failed["reason"].startswith("out of memory; lower sweep.batch_size")
    assert "CUDA out of memory" in failed["reason"]
    assert "CUDA out of memory" in (sweeps.path("hungry") / failed["log"]).read_text()
    assert "try 2" not in err


def test_a_start_that_takes_too_long_ends_with_the_last_lines(sweeps: Sweeps) -> None:
    code, summary, err = sweeps.run("slow", "engine.start_timeout_s=2", "engine.dtype=bfloat16")
    assert code == 1
    assert summary["cells"]["ok"] == 0
    assert "the stand-in did not answer /health in 2 s" in summary["error"]
    assert "its last lines: loading" in summary["error"]
    assert "try 2 of 2" in err
    assert "Traceback" not in err


def test_ctrl_c_once_finishes_the_cell_and_writes_the_report(sweeps: Sweeps) -> None:
    folder = sweeps.path("once")
    process = sweeps.start("once", "report.build=true")
    at_a_cell(process, folder)
    before = finished(folder)
    process.signal(signal.SIGINT)
    code, summary, err = process.end()
    assert code == 130, err
    assert summary["interrupted"] == "SIGINT"
    assert before + 1 == finished(folder) == summary["cells"]["ok"]
    assert Path(summary["report"]).is_file()
    assert "SIGINT: the running cell was finished; the same command with run_id=once does the rest" in err
    assert not (folder / ".claims").exists()
    code, _, err = sweeps.run("once")
    assert code == 0, err
    assert sweeps.content("once") == sweeps.content("whole")


def test_a_closed_terminal_ends_it_in_good_order(sweeps: Sweeps) -> None:
    folder = sweeps.path("closed")
    process = sweeps.start("closed")
    engine = at_a_cell(process, folder)
    process.signal(signal.SIGHUP)
    code, summary, err = process.end()
    assert (code, summary["interrupted"]) == (129, "SIGHUP"), err
    assert "the same command with run_id=closed does the rest" in err
    gone(engine)
    assert not (folder / ".claims").exists()
    assert not (folder / ".running").exists()


def test_ctrl_c_twice_stops_now(sweeps: Sweeps) -> None:
    folder = sweeps.path("twice")
    process = sweeps.start("twice", "engine.stall_timeout_s=60")
    engine = at_a_cell(process, folder)
    engine.suspend()  # so that the cell does not end by itself
    relatives = process.family()
    process.signal(signal.SIGINT)
    wait_for(lambda: "once more to stop now" in process.errors)
    process.signal(signal.SIGINT)  # at once: an echo
    time.sleep(1.1)
    assert process.poll() is None
    process.signal(signal.SIGINT)
    code, summary, err = process.end(20)
    assert code == 130, err
    gone(*relatives)
    assert (summary["interrupted"], summary["report"], summary["cells"]["ok"]) == ("SIGINT", None, 0)
    assert "the running cell is lost" in err
    assert not (folder / ".claims").exists()
    assert not (folder / ".running").exists()
    code, _, err = sweeps.run("twice")
    assert code == 0, err
    assert sweeps.content("twice") == sweeps.content("whole")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_engine_is_stopped_leaves_a_whole_run(
    sweeps: Sweeps, number: signal.Signals, status: int
) -> None:
    name = f"stopping_{number.name}"
    one_cell = ("sweep.strategy=[autoregressive]", "sweep.batch_size=[1]")
    process = sweeps.start(name, "report.build=true", "engine.threads=2", *one_cell)
    wait_for(lambda: finished(sweeps.path(name)) == 1 and "[1/1]" in process.errors)
    (engine,) = process.engines()
    process.signal(number)
    code, summary, err = process.end()
    assert code == status, err
    assert (summary["interrupted"], summary["cells"]["ok"]) == (number.name, 1)
    assert Path(summary["report"]).is_file()
    assert f"{number.name}: the engine was stopped; the same command with run_id={name} does the rest" in err
    gone(engine)
    assert not (sweeps.path(name) / ".claims").exists()
