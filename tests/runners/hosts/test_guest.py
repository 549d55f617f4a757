"""A host whose user may write its own home and nothing else: no root, no terminal, no agent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from guest import NUMBER, PYTHON, GuestServer, guest, guest_server
from processes import runs, write_server

from ddbench.errors import ConfigError
from experiments.hosts import reached
from runners.hosts import open_host
from runners.server import Server, ServerCommand


@pytest.fixture(scope="module")
def server() -> Iterator[GuestServer]:
    with guest_server() as made:
        yield made


def test_an_engine_lives_and_ends_there_as_the_guest(server: GuestServer, tmp_path: Path) -> None:
    script = write_server(server.folder)
    with open_host(server.config()) as host:
        assert host.run(["id", "-un"]).stdout.strip() == guest()
        assert host.facts()["gpus"] == []
        command = ServerCommand([PYTHON, str(script), "{port}"], start_timeout_s=20.0, host=host)
        with Server.start(command, tmp_path / "log") as engine:
            assert engine.healthy()
            pids = [engine.pid, *(each.pid for each in psutil.Process(engine.pid).children(recursive=True))]
            uid = NUMBER if os.getuid() == 0 else os.getuid()
            assert {psutil.Process(pid).uids().real for pid in pids} == {uid}
        assert engine.stop().problem is None
        assert not any(runs(pid) for pid in pids)
    assert {each.name for each in server.home.iterdir()} <= {"work", ".cache"}


@pytest.mark.parametrize("place", ["/etc/ddbench", str(Path("~root").expanduser() / "work"), "/proc/work"])
def test_where_the_guest_may_not_write_is_refused_at_the_door(server: GuestServer, place: str) -> None:
    with pytest.raises(ConfigError, match=r"host\.workdir=.*: a folder on host loopback to write into \(/.*\)"):
        reached(server.config(workdir=place))
