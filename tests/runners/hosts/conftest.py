"""An ssh server for the tests of a module, and the helper modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from ssh_servers import SshServer  # noqa: E402

from runners.hosts import Host, open_host  # noqa: E402


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with SshServer(tmp_path_factory.mktemp("sshd")) as made:
        yield made


@pytest.fixture
def host(server: SshServer) -> Iterator[Host]:
    opened = open_host(server.config())
    yield opened
    opened.close()
