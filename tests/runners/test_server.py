from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from processes import command, runs, wait_for, write_server

from ddbench.errors import ConfigError
from runners.base import EngineFailure
from runners.ports import claim_port, free_port
from runners.server import Server, ServerCommand, describe_exit
from runners.telemetry import Telemetry

# A child that ignores SIGTERM, and a grandchild that has left for a session of its own.
FAMILY = """
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
away = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)"
children = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for code in (stubborn, away)]
for child in children:
    child.stdout.readline()
"""


def tree(server: Server) -> list[int]:
    return [process.pid for process in server._process.tree()]


def test_a_server_answers_until_it_is_stopped(tmp_path: Path) -> None:
    script = write_server(tmp_path, before="print(os.environ.get('DDBENCH_TEST'), os.environ.get('HOME'), flush=True)")
    with Server.start(command(script, environment={"DDBENCH_TEST": "given", "HOME": None}), tmp_path / "log") as server:
        server.check()
        assert server.healthy()
        assert server.ready_s is not None
        assert urllib.request.urlopen(f"{server.base_url}/health").status == 200
        assert os.getpgid(server.pid) == server.pid
        assert os.getsid(server.pid) != os.getsid(0)
        pids = tree(server)
        assert len(pids) == 2
    assert server.log_tail() == "given None\nlistening"
    assert not server.alive()
    assert not any(runs(pid) for pid in pids)
    assert server.stop() == server.stop()
    assert server.stop().problem is None
    assert server.stop().exit_code == -signal.SIGTERM
    with pytest.raises(EngineFailure, match=r"SIGTERM"):
        server.check()


def test_death_before_it_answers_gives_the_cause(tmp_path: Path) -> None:
    script = write_server(tmp_path, before="import atexit\natexit.register(print, 'Shutting down')\n{}['model']")
    began = time.monotonic()
    with pytest.raises(EngineFailure) as failure:
        Server.start(command(script, name="the test engine"), tmp_path / "log")
    assert time.monotonic() - began < 10
    expected = f"the test engine died (exit code 1): KeyError: 'model' (see {tmp_path / 'log'})"
    assert str(failure.value) == expected


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    missing = tmp_path / "no_such_program"
    with pytest.raises(EngineFailure, match=r"exit code 127\): cannot start .*no_such_program: No such file"):
        Server.start(ServerCommand([str(missing), "{port}"]), tmp_path / "log")


def test_no_answer_in_time(tmp_path: Path) -> None:
    script = write_server(tmp_path, before="print('loading', os.getpid(), flush=True); time.sleep(600)")
    with pytest.raises(EngineFailure, match=r"did not answer /health in 1\.5 s: loading \d+ \(see"):
        Server.start(command(script, start_timeout_s=1.5), tmp_path / "log")
    pid = int((tmp_path / "log").read_text().split()[1])
    assert not runs(pid)


def test_death_after_it_answered(tmp_path: Path) -> None:
    after = "import threading\nthreading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGSEGV)).start()"
    with Server.start(command(write_server(tmp_path, after=after)), tmp_path / "log") as server:
        server.check()
        assert wait_for(lambda: not server.alive())
        with pytest.raises(EngineFailure, match=r"died \(signal 11, SIGSEGV\): listening"):
            server.check()
        assert not server.healthy()


def test_every_process_ends_even_a_stubborn_one_that_left_the_group(tmp_path: Path) -> None:
    stubborn = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script = write_server(tmp_path, before=stubborn + FAMILY)
    server = Server.start(command(script, grace_s=0.5), tmp_path / "log")
    pids = tree(server)
    assert len(pids) >= 4
    assert any(os.getpgid(pid) != server.pid for pid in pids)
    ending = server.stop()
    assert ending.exit_code == -signal.SIGKILL
    assert 0.4 < ending.seconds < 5
    assert ending.problem is None
    assert not any(runs(pid) for pid in pids)


def test_children_of_a_server_that_died_end_too(tmp_path: Path) -> None:
    after = FAMILY + "\nimport threading\nthreading.Timer(1.0, lambda: os._exit(3)).start()"
    server = Server.start(command(write_server(tmp_path, before=after), grace_s=0.2), tmp_path / "log")
    pids = tree(server)
    assert len(pids) >= 4
    assert wait_for(lambda: not server.alive())
    assert not any(runs(pid) for pid in pids)
    assert server.stop().exit_code == 3


def test_a_killed_parent_takes_the_server_with_it(tmp_path: Path) -> None:
    script = write_server(tmp_path, before=FAMILY)
    root = Path(__file__).parents[2]
    parent_code = (
        f"import sys, time; sys.path[:0] = [{str(root)!r}, {str(Path(__file__).parent)!r}]\n"
        "from pathlib import Path; from processes import command; from runners.server import Server\n"
        f"server = Server.start(command(Path({str(script)!r}), grace_s=0.2), Path({str(tmp_path / 'log')!r}))\n"
        "print(*[process.pid for process in server._process.tree()], flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) >= 4
        assert all(runs(pid) for pid in pids[:2])
        parent.kill()
    assert wait_for(lambda: not any(runs(pid) for pid in pids))


def test_a_killed_keeper_takes_the_server_with_it(tmp_path: Path) -> None:
    server = Server.start(command(write_server(tmp_path, before=FAMILY)), tmp_path / "log")
    pids = tree(server)
    os.kill(server.pid, signal.SIGKILL)
    assert wait_for(lambda: not server.alive() and not runs(pids[1]))
    with pytest.raises(EngineFailure, match="SIGKILL"):
        server.check()
    for pid in pids:  # the one that left the group has lost its keeper: not ours to find any more
        if runs(pid) and os.getpgid(pid) != server.pid:
            os.kill(pid, signal.SIGKILL)
    server.stop()
    assert wait_for(lambda: not any(runs(pid) for pid in pids))


def test_a_keeper_that_hangs_does_not_hold_up_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.hosts.local.KEEPER_MARGIN_S", 0.2)
    server = Server.start(command(write_server(tmp_path, before=FAMILY), grace_s=0.2), tmp_path / "log")
    pids = tree(server)
    os.kill(server.pid, signal.SIGSTOP)
    ending = server.stop()
    assert ending.problem is None
    assert ending.seconds < 5
    assert not any(runs(pid) for pid in pids)


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"engine\.port={port}: .*it is taken"):
            Server.start(command(write_server(tmp_path), port=port), tmp_path / "log")
        assert not (tmp_path / "log").exists()
    assert claim_port(port) == port
    with pytest.raises(ConfigError, match="1 to 65535"):
        claim_port(70000)
    assert 1024 <= free_port() <= 65535


def test_another_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Somebody took the port after it was chosen: the answer is theirs, and ours must not be measured."""
    other = tmp_path / "other"
    other.mkdir()
    with Server.start(command(write_server(other)), other / "log") as first:
        script = write_server(tmp_path, before="time.sleep(600)")
        second = Server(command(script), tmp_path / "log", first.port)
        try:
            with pytest.raises(EngineFailure, match=f"another process answers on port {first.port}"):
                second._wait_until_ready()
        finally:
            second.stop()
        first.check()


def test_the_log_is_split_by_marks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier server: ValueError: old\n", encoding="utf-8")
    after = "import threading\nthreading.Timer(0.6, lambda: print('later', flush=True)).start()"
    with Server.start(command(write_server(tmp_path, after=after)), log) as server:
        mark = server.log_mark()
        assert wait_for(lambda: server.log_mark() > mark)
        end = server.log_mark()
        assert server.log_part(mark) == server.log_part(mark, end) == "later\n"
        server.copy_log(tmp_path / "part", 0, mark)
        assert (tmp_path / "part").read_text() == "of an earlier server: ValueError: old\nlistening\n"
        assert server.log_tail(1) == "later"
        assert server.log_tail() == "listening\nlater"


def test_telemetry_sums_the_process_tree(tmp_path: Path) -> None:
    hungry = "block = bytearray(200 * 2**20); block[::4096] = bytes(len(block[::4096])); print(flush=True)"
    before = (
        f'child = subprocess.Popen([sys.executable, "-c", "{hungry}; import time; time.sleep(600)"], stdout=-1)\n'
        "child.stdout.readline()"
    )
    with (
        Server.start(command(write_server(tmp_path, before=before)), tmp_path / "log") as server,
        Telemetry(interval_s=0.05, pid=server.pid) as telemetry,
    ):
        time.sleep(0.3)
    assert 0.2 < telemetry.peak_rss_gib < 1.0
    with Telemetry(pid=server.pid) as telemetry:
        pass
    assert telemetry.peak_rss_gib == 0.0


def test_exits_in_words() -> None:
    assert describe_exit(2) == "exit code 2"
    assert describe_exit(-9) == "signal 9, SIGKILL"
    assert describe_exit(-250) == "signal 250"
