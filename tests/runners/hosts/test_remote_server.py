"""An engine that is a server, measured on a host behind ssh: a stand-in for vLLM in its own process there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ssh_servers import SshServer

sys.path.append(str(Path(__file__).parents[1] / "vllm"))

from arms import CPU, arm
from stand_in import TOKENS, cell, spec, write_stand_in

from ddbench.errors import ConfigError
from runners.base import CellJob
from runners.environments import our_hash
from runners.hosts import HostFailure, host_of
from runners.vllm.runner import VllmRunner


def test_a_cell_is_measured_over_ssh(server: SshServer, tmp_path: Path) -> None:
    python = write_stand_in(tmp_path)
    config = server.config(pythons={"vllm": python})
    given = spec(python)
    runner = VllmRunner(replace(given, host=config, server=replace(given.server, python=None)))  # type: ignore[type-var]
    folder = tmp_path / "cell"
    folder.mkdir()
    try:
        facts = runner.start()
        outcome = runner.run_cell(CellJob(cell(arm("autoregressive", demands=CPU)), folder, 2), lambda *_: None)
    finally:
        runner.stop()
    assert outcome.status != "failed", outcome.reason
    assert facts["engine_environment"]["version"] == "0.32.0"
    assert "POST /v1/completions" in (folder / "server.log").read_text()
    rows = pq.read_table(folder / "requests.parquet").to_pylist()
    assert [(row["output_token_ids"], row["finish_reason"]) for row in rows] == [([5] * TOKENS, "length")] * 6
    seen = set(pq.read_table(folder / "telemetry.parquet")["name"].to_pylist())
    assert "process_rss_gib" in seen  # the cell is over before the sampler there can tell a load: test_ssh_host.py
    argv = json.loads((folder / "engine.json").read_text())["argv"]
    assert argv[0] == python
    served = argv[argv.index("--model") + 1]
    assert served.startswith(str(config.workdir))  # the model was put there
    assert (Path(served) / "config.json").is_file()


def test_every_start_looks_at_the_plug_in_there(server: SshServer, tmp_path: Path) -> None:
    """One that somebody changed since is refused in the words of the first start, and another try would not help."""
    python = write_stand_in(tmp_path, says="ddbench: DDTree plug-in for vLLM 0.32.0 registered")
    config = server.config(pythons={"vllm": python})
    given = spec(python, "ddtree")
    runner = VllmRunner(replace(given, host=config, server=replace(given.server, python=None)))  # type: ignore[type-var]
    folder = tmp_path / "cell"
    folder.mkdir()

    def change() -> None:
        text = Path(python).read_text()
        Path(python).write_text(text.replace(str(our_hash()), "0" * 16))

    try:
        runner.start()
        change()
        outcome = runner.run_cell(CellJob(cell(arm("ddtree", demands=CPU)), folder, 2), lambda *_: None)
    finally:
        runner.stop()
    assert (outcome.status, outcome.kind) == ("failed", "hopeless")
    assert "another version of ddbench is installed there (plug-in 0000000000000000" in (outcome.reason or "")
    assert "`python -m ddbench experiment=bootstrap host=loopback engine=vllm" in (outcome.reason or "")
    with pytest.raises(ConfigError, match=r"plug-in 0000000000000000.* on host loopback: `python -m ddbench"):
        runner.start()


def test_a_connection_that_drops_under_a_cell_fails_it_as_lost(tmp_path: Path) -> None:
    python = write_stand_in(tmp_path)
    with SshServer(tmp_path / "sshd") as server:
        config = server.config(pythons={"vllm": python})
        given = spec(python)
        runner = VllmRunner(replace(given, host=config, server=replace(given.server, python=None)))  # type: ignore[type-var]
        folders = [tmp_path / "first", tmp_path / "second"]
        for folder in folders:
            folder.mkdir()
        calls = []

        def cut_once(*_: int) -> None:
            calls.append(1)
            if len(calls) == 1:
                server.cut()

        try:
            runner.start()
            job = CellJob(cell(arm("autoregressive", demands=CPU)), folders[0], 2)
            lost = runner.run_cell(job, cut_once)
            assert (lost.status, lost.kind) == ("failed", "lost")
            assert "host loopback" in (lost.reason or "")
            again = runner.run_cell(replace(job, folder=folders[1]), cut_once)
            assert again.status != "failed", again.reason
        finally:
            runner.stop()
            host_of(config).close()


def test_a_host_that_is_down_is_said_when_the_engine_is_to_start(server: SshServer, tmp_path: Path) -> None:
    given = spec(write_stand_in(tmp_path))
    runner = VllmRunner(replace(given, host=server.config(port=1)))
    with pytest.raises(HostFailure, match=r"host loopback .* cannot be reached"):
        runner.start()
