"""What bootstrap says of a host that it cannot use, in processes of its own and over a real sshd: one line, nothing
made there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runners.ports import free_port
from tests.runners.hosts.ssh_servers import SshServer

ASKED = ["experiment=bootstrap", "engine=vllm", "engine.device=cpu"]


@pytest.fixture(scope="module")
def line(make_command_line: Callable[[], Any]) -> Any:
    return make_command_line()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with SshServer(tmp_path_factory.mktemp("ssh")) as made:
        yield made


def test_a_host_of_no_use_is_one_line(line: Any, server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cases = {
        "host.workdir": (f"host.workdir={tmp_path}/file/x", "a folder on host loopback to write into"),
        "host.address": (f"host.port={free_port()}", "a host that answers"),
    }
    for key, (change, allowed) in cases.items():
        ended = line.bare(*ASKED, *server.overrides(), change)
        assert (ended.code, ended.out) == (2, ""), ended.err
        (only,) = ended.errors
        assert only.startswith(f"error: {key}="), only
        assert allowed in only
    assert not (server.folder / "work dir").exists()


def test_a_host_of_a_list_that_is_down_stops_no_other(line: Any, server: SshServer) -> None:
    """The other is looked at to its end, which is that the environment to be adopted is none."""
    entries = f"[{{name:down,port:{free_port()}}},{{name:up}}]"
    ended = line.bare(*ASKED, *server.overrides(), f"host.hosts={entries}", "engine.python=/bin/false")
    assert ended.code == 1, ended.err
    down, up = ended.summary["hosts"]
    assert (down["host"], up["host"]) == ("down", "up")
    assert down["error"].startswith("host.address='127.0.0.1': a host that answers")
    assert up["error"].startswith("engine.python='/bin/false'")
    assert "Traceback" not in ended.err
