"""SIGKILL to whatever holds or carries a connection to a host, along one sweep over a real ssh server; and a sweep that
is given a list of hosts."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sweeps import CELLS, Process, Sweeps, finished, gone, is_engine, lives, statuses, wait_for

sys.path.append(str(Path(__file__).parents[1] / "runners" / "hosts"))

from ssh_servers import SshServer

from runners.ports import free_port

# Of each start of the client: what is killed, and the seconds from the moment when it is at a cell. The last of each is
# the client itself.
POINTS = [
    [("connection", 0.0), ("master", 0.1), ("client", 0.05)],
    [("line", 0.05), ("keeper", 0.15), ("client", 0.0)],
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SshServer]:
    with SshServer(tmp_path / "sshd") as made:
        yield made


def there(server: SshServer) -> list[str]:
    """The loopback host under the name of this machine, so that its cells are the same."""
    return [*server.overrides(name="local"), "host.gpu_name=null", "host.sku=null", "faults.retries=9"]


def engines(server: SshServer) -> list[psutil.Process]:
    """What runs on the host: engines that are themselves."""
    assert server.process is not None
    return [each for each in psutil.Process(server.process.pid).children(recursive=True) if is_engine(each)]


def at_a_cell(process: Process, server: SshServer, folder: Path) -> psutil.Process:
    def measures() -> bool:
        assert process.poll() is None, process.errors
        return any((folder / ".running").glob("*/*")) and len(engines(server)) == 1

    wait_for(measures)
    return engines(server)[0]


def kill(what: str, process: Process, server: SshServer, engine: psutil.Process) -> None:
    if what == "connection":
        server.cut()
    elif what == "client":
        process.kill()
    elif what == "keeper":
        keeper = engine.parent()
        assert keeper is not None
        keeper.kill()
    else:
        mark = " -M " if what == "master" else "/scripts/keeper-"
        lines = [each for each in process.family() if lives(each) and each.name() == "ssh"]
        (one,) = [each for each in lines if mark in " ".join(each.cmdline())]
        one.kill()


def test_kills_of_ssh_and_the_run_is_whole(sweeps: Sweeps, server: SshServer) -> None:
    folder = sweeps.path("cut-off")
    kills = 0
    for points in POINTS:
        process = sweeps.start("cut-off", *there(server))
        for what, seconds in points:
            engine = at_a_cell(process, server, folder)
            time.sleep(seconds)
            relatives = process.family()
            kill(what, process, server, engine)
            kills += 1
            gone(engine, *(relatives if what == "client" else ()))
    assert kills == 6
    assert finished(folder) < CELLS
    code, summary, err = sweeps.run("cut-off", *there(server))
    assert code == 0, err
    assert summary["cells"] == {"ok": CELLS, "unsupported": 0, "failed": 0, "suspect": 0}
    assert sweeps.content("cut-off") == sweeps.content("whole")
    assert engines(server) == []
    assert not (folder / ".claims").exists()
    assert not (folder / ".running").exists()


def test_a_sweep_takes_the_first_host_of_a_list_that_answers(sweeps: Sweeps, server: SshServer) -> None:
    gpu = 20_000 + os.getpid()  # that no machine has: its lock alone is real, and nobody else's
    entries = f"[{{name:down,port:{free_port()}}},{{name:up,gpus:[{gpu}]}}]"
    code, summary, err = sweeps.run("listed", *there(server), f"host.hosts={entries}", "sweep.batch_size=[1]")
    assert code == 0, err
    assert summary["cells"]["ok"] == 2
    assert "host down is left out: host.address=" in err
    assert "host up of local" in err
    folder = sweeps.path("listed")
    environment = json.loads((folder / "environment.json").read_text())
    assert (environment["host"]["name"], environment["host"]["member"]) == ("local", "up")
    assert all(status["attempts"] == [] for status in statuses(folder))
    whole = sweeps.content("whole")
    assert all(found == whole[cell] for cell, found in sweeps.content("listed").items())
