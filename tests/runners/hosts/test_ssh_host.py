"""A host behind a real ssh server on loopback, with keys of its own and a key that may do little."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from processes import runs, wait_for, write_server
from programs import VALUES, write_smi, write_values
from ssh_servers import KINDS, SshServer

from ddbench.errors import ConfigError
from experiments.hosts import differences, environment
from runners.base import EngineFailure
from runners.gpu_memory import MemoryGate
from runners.hosts import Host, HostFailure, LocalHost, host_of, open_host
from runners.server import Server, ServerCommand
from runners.telemetry import Telemetry


def command(script: Path, host: Host, **settings: object) -> ServerCommand:
    values = {"start_timeout_s": 20.0, "grace_s": 1.0, "host": host, **settings}
    return ServerCommand([sys.executable, str(script), "{port}"], **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_server_serves(tmp_path: Path, kind: str) -> None:
    """Those that CI may fall back on too."""
    with SshServer(tmp_path / "sshd", kind) as server, open_host(server.config()) as host:
        assert host.run(["sh", "-c", "cat; exit 3"], input=b"told").rc == 3
        with Server.start(command(write_server(tmp_path), host), tmp_path / "log") as engine:
            assert urllib.request.urlopen(f"{engine.base_url}/health").status == 200
        assert engine.stop().exit_code == -15
        assert engine.log_tail() == "listening"


def test_arguments_arrive_as_they_are(host: Host) -> None:
    """No shell takes anything out of a value, in an argument, a variable or a path."""
    nasty = ["a b", "$HOME", "`id`", "; echo x", "'", '"', "*", "a\nb", "~/x", "-n", "ü", ""]
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('NASTY'), 'HOME' in os.environ]))"
    done = host.run([sys.executable, "-c", code, *nasty], env={"NASTY": "; $(id) '\"", "HOME": None})
    assert json.loads(done.stdout) == [nasty, "; $(id) '\"", False]
    assert host.run(["sh", "-c", "echo out; echo err >&2; exit 255"]).rc == 255
    assert host.run(["no-such-program"]).rc == 127
    assert host.run(["pwd"]).stdout.strip() == host.expand("~")


def test_a_command_that_takes_too_long_is_ended_there(host: Host, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    with pytest.raises(HostFailure, match=r"took more than 0\.5 s"):
        host.run(["sh", "-c", 'echo $$ > "$1"; sleep 600', "sh", str(mark)], timeout_s=0.5)
    assert wait_for(lambda: not runs(int(mark.read_text())))


def test_files_and_folders_go_there_and_back(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "$x").write_bytes(bytes(range(256)) * 5000)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    there = host.path("files", "it's here")
    host.put(folder, there)
    host.put(folder, there)  # in the place of the first
    host.get(there, tmp_path / "back")
    names = ["inner", "inner/$x", "run"]
    assert sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*")) == names
    assert (tmp_path / "back" / "inner" / "$x").read_bytes() == (folder / "inner" / "$x").read_bytes()
    assert (tmp_path / "back" / "run").stat().st_mode & 0o111
    host.get(f"{there}/run", tmp_path / "run")
    assert (tmp_path / "run").read_text() == "#!/bin/sh\n"
    with pytest.raises(HostFailure, match="No such file"):
        host.get(host.path("nothing"), tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_busy_port_is_refused_there(host: Host) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"engine\.port={port}: a free port of host loopback .*it is taken"):
            host.claim_port(port)
    assert host.claim_port(port) == port
    assert 1024 <= host.free_port() <= 65535


def test_another_server_on_the_port_is_not_taken_for_ours(host: Host, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with Server.start(command(write_server(other), LocalHost()), other / "log") as first:
        script = write_server(tmp_path, before="time.sleep(600)")
        second = Server(command(script, host), tmp_path / "log", first.port)
        try:
            with pytest.raises(EngineFailure, match=f"another process answers on port {first.port}"):
                second._wait_until_ready()
        finally:
            second.stop()
        first.check()


def test_an_engine_starts_dies_and_ends_as_it_does_here(host: Host, tmp_path: Path) -> None:
    family = (
        "stubborn = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True);"
        " time.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', stubborn], stdout=-1, start_new_session=True)\n"
        "child.stdout.readline()\n"
        "print('child', child.pid, os.environ.get('GIVEN'), os.environ.get('USER'), flush=True)"
    )
    script = write_server(tmp_path, before=family)
    environment = {"GIVEN": "a 'value'", "USER": None}
    with Server.start(command(script, host, grace_s=0.3, environment=environment), tmp_path / "log") as engine:
        assert engine.log_part().endswith("a 'value' None\nlistening\n")
        child = int(engine.log_part().split()[1])
        assert runs(child)
        assert runs(engine.pid)
        with Telemetry(interval_s=0.1, pid=engine.pid, host=host) as telemetry:
            time.sleep(0.4)
    assert engine.stop().problem is None
    assert not runs(child)
    assert not runs(engine.pid)
    seen = {name for _, name, _ in telemetry.samples}
    assert {"process_rss_gib", "cpu_percent"} <= seen
    assert 0.01 < (telemetry.peak_rss_gib or 0) < 0.5
    dying = write_server(tmp_path, before="{}['model']")
    with pytest.raises(EngineFailure, match=r"died \(exit code 1\): KeyError: 'model'"):
        Server.start(command(dying, host), tmp_path / "log")


def test_a_gpu_has_one_engine_unless_told(server: SshServer, host: Host, tmp_path: Path) -> None:
    script = write_server(tmp_path)
    number = 10_000 + os.getpid()  # of a GPU that no machine has: its lock alone is real
    first = host.start(["sleep", "600"], log=tmp_path / "first", grace_s=0.1, locks=[f"gpu-{number}"])
    try:
        with pytest.raises(EngineFailure, match=r"got no GPU \(host\.share_gpus\).*gpu-\d+ is in use by process \d+"):
            Server.start(command(script, host, gpus=(number,)), tmp_path / "log")
        shared = host_of(server.config(share_gpus=True))
        with Server.start(command(script, shared, gpus=(number,)), tmp_path / "log"):
            pass
    finally:
        assert first.stop() is None
    again = host.start(["sleep", "600"], log=tmp_path / "again", grace_s=0.1, locks=[f"gpu-{number}"])
    assert again.poll() is None
    again.stop()


@pytest.fixture
def with_card(tmp_path: Path) -> Iterator[tuple[SshServer, Path]]:
    values = write_smi(tmp_path / "programs")
    with SshServer(tmp_path / "sshd", programs=tmp_path / "programs") as server:
        yield server, values


def test_facts_of_a_host_and_what_differs_from_its_config(with_card: tuple[SshServer, Path]) -> None:
    server, _ = with_card
    expected = {
        "gpu_name": "RTX PRO 6000",
        "sku": "Workstation",
        "power_limit_w": 600.0,
        "memory_clock_mhz": 14001,
        "gpus": (0, 1),
    }
    config = server.config(**expected)
    with open_host(config) as host:
        facts = host.facts()
        told = environment(config)
    (gpu,) = facts["gpus"]
    assert gpu["name"] == VALUES["name"]
    assert (gpu["power_limit_w"], gpu["memory_clock_max_mhz"], gpu["pcie_width"]) == (300, 14001, 8)
    assert (gpu["ecc"], gpu["temperature_c"], gpu["driver"]) == (None, 31, "580.1")
    assert (facts["cuda"], facts["driver"]) == ("13.0", "580.1")
    assert facts["neighbours"] == [{"uuid": "GPU-1", "pid": 4321, "name": "/usr/bin/python3", "memory_mib": 2048}]
    assert told["host_warnings"] == differences(config, facts)
    assert told["gpus"] == told["host"]["gpus"]
    assert "temperature_c" not in told["gpus"][0]
    assert told["host_state"]["gpus"][0]["temperature_c"] == 31
    said = "\n".join(told["host_warnings"])
    for words in (
        "GPU 0 is the Max-Q edition",
        "limited to 300 W, and host.power_limit_w=600",
        "8 of 16 PCIe lanes",
        "no GPU 1 (host.gpus)",
        "process 4321 (/usr/bin/python3, 2048 MiB) computes on GPU 0 too",
    ):
        assert words in said
    anywhere = replace(config, gpus=None)
    assert differences(anywhere, facts, [1]) == [], "of a GPU that the engine does not use nothing is said"
    assert [len(differences(anywhere, facts, mine)) for mine in ([0], ["GPU-1"], None)] == [4, 4, 4]
    # the beginning of a UUID is that GPU; of a name that is no GPU's it is not known which one it is a part of
    assert [len(differences(anywhere, facts, mine)) for mine in (["gpu"], ["GPU-2"], ["MIG-1"], ())] == [4, 4, 4, 0]
    assert "memory clock" not in said
    assert "host.gpu_name" not in said
    slower = differences(server.config(memory_clock_mhz=14500, gpu_name="H200"), facts)
    assert any("memory clock of 14001 MHz at most, and host.memory_clock_mhz=14500" in line for line in slower)
    assert any("host.gpu_name=H200" in line for line in slower)


def test_memory_is_seen_to_return_there(with_card: tuple[SshServer, Path], tmp_path: Path) -> None:
    server, values = with_card
    with open_host(server.config()) as host:
        assert host.used_gib(0) == 1.0
        with Telemetry(0, 0.1, pid=1, host=host) as telemetry:
            time.sleep(0.3)
        seen = {name: value for _, name, value in telemetry.samples}
        assert seen["gpu_memory_gib"] == 1.0
        assert (seen["gpu_power_w"], seen["gpu_throttle_reasons"]) == (21.5, 4.0)
        assert "gpu_utilization_percent" not in seen
        gate = MemoryGate.before([0], host.used_gib)
        write_values(values, {**VALUES, "memory.used": "9216"})
        assert gate.wait(0.1) == "GPU 0 still has 9.00 GiB in use, 1.00 GiB before the engine started"
        write_values(values, VALUES)
        assert gate.wait(1.0) is None


def test_an_engine_has_ended_only_when_its_memory_is_back(
    with_card: tuple[SshServer, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card there gives it back a while after the process has gone, or never."""
    server, values = with_card
    number = 10_000 + os.getpid()
    with open_host(server.config()) as host:
        for back, problem in ((True, None), (False, "still has 9.00 GiB in use, 1.00 GiB before the engine started")):
            engine = Server.start(command(write_server(tmp_path), host, gpus=(number,)), tmp_path / "log")
            write_values(values, {**VALUES, "memory.used": "9216"})
            if back:
                threading.Timer(1.0, write_values, (values, VALUES)).start()
            monkeypatch.setattr("runners.server.RETURN_TIMEOUT_S", 20.0 if back else 0.5)
            began = time.monotonic()
            ending = engine.stop()
            assert (ending.problem or "").endswith(problem or "")
            assert (ending.problem is None) == back
            assert time.monotonic() - began > (0.9 if back else 0.4)
            write_values(values, VALUES)
