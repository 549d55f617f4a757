"""A whole sweep over a real ssh server on loopback: the same cells, tokens and counts as here, whatever broke."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

sys.path.append(str(Path(__file__).parents[1] / "runners" / "hosts"))

from ssh_servers import SshServer

from ddbench.errors import ConfigError

GRID = [
    "sweep.strategy=[autoregressive,ddtree]",
    "sweep.width=[2]",
    "sweep.depth=[4]",
    "sweep.nodes=[8]",
    "sweep.batch_size=[2]",
    "load.blocks=2",
    "load.restart=false",
    "load.max_new_tokens=24",
    "faults.retries=5",
    "faults.retry_wait_s=1",
]


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[SshServer]:
    with SshServer(tmp_path / "sshd") as server:
        yield server


def there(server: SshServer) -> list[str]:
    """The loopback host under the name of this machine, so that its cells are the same."""
    python = f"host.pythons.reference={sys.executable}"
    return [*server.overrides(name="local"), python, "host.gpu_name=H200", "host.sku=null"]


def counted(run: Path) -> dict[str, list[Any]]:
    """By cell: what must be the same wherever it was measured."""
    names = ["prompt_id", "repeat", "output_token_ids", "rounds", "drafted", "accepted", "finish_reason"]
    return {
        place.name: sorted(
            ([row[name] for name in names] for row in pq.read_table(place / "requests.parquet").to_pylist()), key=repr
        )
        for place in sorted((run / "cells").iterdir())
    }


def test_a_sweep_over_ssh_through_a_dropped_connection(ddbench: Any, ssh: SshServer) -> None:
    here = ddbench.start(*GRID, "report.build=false", "run_id=here")
    process = ddbench.start(*GRID, *there(ssh), "run_id=there")
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("[ 1/") or line.startswith("[1/"):
            ssh.cut()
            break
    out, err = process.communicate(timeout=300)
    told = "".join(said) + err
    here.communicate(timeout=300)
    assert here.returncode == 0
    assert process.returncode == 0, told
    assert json.loads(out.strip().splitlines()[-1])["cells"] == {"ok": 4, "unsupported": 0, "failed": 0, "suspect": 0}
    assert "; try 2 of 6" in told, told
    assert "nvidia-smi shows no GPU there, where H200 is expected" in told
    run = ddbench.path("there")
    assert counted(run) == counted(ddbench.path("here"))
    statuses = [json.loads(path.read_text()) for path in sorted(run.glob("cells/*/status.json"))]
    kinds = [each["kind"] for status in statuses for each in status["attempts"]]
    assert kinds
    assert set(kinds) == {"lost"}
    assert all((run / status["log"]).is_file() for status in statuses)
    environment = json.loads((run / "environment.json").read_text())
    assert environment["host"]["kind"] == "ssh"
    assert environment["engine_environment"]["torch"]
    page = (run / "report.md").read_text()
    assert "The machine is not as its configuration says, or was shared: nvidia-smi shows no GPU there" in page
    assert "Machine of the engine" in page
    workdir = str(ssh.folder / "work dir")
    left = [each for each in psutil.process_iter(["cmdline"]) if workdir in " ".join(each.info["cmdline"] or [])]
    assert left == []
    assert list((ssh.folder / "work dir" / "runs").glob("*/*")) == []


def test_a_host_that_cannot_be_used_is_refused_before_anything_starts(ddbench: Any, ssh: SshServer) -> None:
    done = ddbench.run(*GRID, *there(ssh), "host.pythons.reference=null", "run_id=refused")
    assert done.code == 2, done.err
    assert done.errors[-1].startswith("error: host.pythons.reference")
    cases = {
        "host.pythons.reference": "host.pythons.reference=/no/such/python",
        "host.address": "host.port=1",
        "host.known_hosts": "host.known_hosts=/dev/null",
    }
    for key, change in cases.items():
        with pytest.raises(ConfigError) as caught:
            ddbench.here("refused", *GRID, *there(ssh), change)
        assert caught.value.key == key
    assert not ddbench.path("refused").exists()
