"""What goes wrong with a host: it is down, another one, full, gone in the middle; and that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from processes import runs, wait_for, write_server
from programs import VALUES, write_smi
from ssh_servers import SshServer, make_key

import experiments.holding
from ddbench.errors import ConfigError
from experiments.hosts import claimed, reached
from runners.hosts import Host, HostConfig, HostFailure, connection, open_host
from runners.places import place
from runners.ports import free_port
from runners.server import Server, ServerCommand

ROOT = Path(__file__).parents[3]
FAMILY = (
    "away = subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'], stdout=-1,"
    " start_new_session=True)\naway.stdout.readline(); print('pids', os.getpid(), away.pid, flush=True)"
)


def started(host: Host, folder: Path, **settings: object) -> tuple[Server, list[int]]:
    """An engine on a host, and all its processes: keeper, engine, and a child that has left the group."""
    values = {"start_timeout_s": 20.0, "grace_s": 0.5, "host": host, **settings}
    argv = [sys.executable, str(write_server(folder, before=FAMILY)), "{port}"]
    engine = Server.start(ServerCommand(argv, **values), folder / "log")  # type: ignore[arg-type]
    pids = [engine.pid, *map(int, engine.log_tail().rpartition("pids ")[2].split()[:2])]
    assert all(runs(pid) for pid in pids)
    return engine, pids


def gone(pids: list[int]) -> bool:
    return wait_for(lambda: not any(runs(pid) for pid in pids))


def test_a_host_that_is_down(server: SshServer) -> None:
    config = server.config(port=free_port())
    with open_host(config) as host, pytest.raises(HostFailure, match=r"host loopback .* cannot be reached .*refused"):
        host.run(["true"])
    with pytest.raises(ConfigError, match=r"host\.address='127\.0\.0\.1': a host that answers"):
        reached(config)


def test_what_is_of_no_use_there_is_found_at_the_door(server: SshServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "x", "/proc/x"):  # that cannot be, whoever asks
        with pytest.raises(ConfigError, match=r"host\.workdir=.*: a folder on host loopback to write into"):
            reached(server.config(workdir=str(folder)))
    with pytest.raises(ConfigError, match=r"host\.python='/nope': a Python >= 3\.9 on host loopback"):
        reached(server.config(python="/nope"))
    reached(server.config(workdir=str(tmp_path / "new" / "er")))
    assert not (tmp_path / "new").exists()


def test_a_host_that_does_not_answer_is_given_up(server: SshServer, tmp_path: Path) -> None:
    """Something listens, and says nothing."""
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as silent:
        assert silent.stdout is not None
        config = server.config(port=int(silent.stdout.readline()), connect_timeout_s=1.0)
        known = tmp_path / "known_hosts"
        known.write_text(Path(str(server.config().known_hosts)).read_text())
        began = time.monotonic()
        with open_host(config) as host, pytest.raises(HostFailure, match=r"cannot be reached|did not answer"):
            host.connect()
        assert time.monotonic() - began < 15
        silent.kill()


def test_a_host_with_another_key_is_refused(server: SshServer, tmp_path: Path) -> None:
    make_key(tmp_path / "other")
    key = (tmp_path / "other.pub").read_text().split()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {key[0]} {key[1]}\n")
    before = known.read_bytes()
    with open_host(server.config(known_hosts=str(known))) as host:
        with pytest.raises(ConfigError, match=r"host\.known_hosts=.*another key than the one there"):
            host.run(["true"])
        known.write_text("")
        with pytest.raises(ConfigError, match=r"host\.known_hosts=.*its key is not there"):
            host.run(["true"])
        assert known.read_text() == ""  # never learnt by itself
        known.write_bytes(before)
        with pytest.raises(ConfigError, match="another key"):
            host.run(["true"])


def test_a_key_that_is_not_known_there_is_refused(server: SshServer, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    with (
        open_host(server.config(key=str(tmp_path / "stranger"))) as host,
        pytest.raises(ConfigError, match=r"host\.key=.*Permission denied"),
    ):
        host.connect()
    for name in ("key", "known_hosts"):
        with (
            open_host(server.config(**{name: str(tmp_path / "nothing")})) as host,
            pytest.raises(ConfigError, match=rf"host\.{name}=.*there is none"),
        ):
            host.connect()


def test_the_key_may_do_little(server: SshServer, host: Host) -> None:
    """No terminal, and no way on to another machine: what runs over the connection needs neither."""
    assert not host.run(["test", "-t", "0"]).ok
    config = server.config()
    options = ["-o", f"UserKnownHostsFile={config.known_hosts}", "-o", "BatchMode=yes", "-p", str(config.port)]
    words = ["ssh", *options, "-i", str(config.key), "-W", "192.0.2.1:22", f"{config.user}@127.0.0.1"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    assert done.returncode != 0
    assert "prohibited" in done.stderr or "denied" in done.stderr or "forwarding failed" in done.stderr


def test_no_python_there(server: SshServer) -> None:
    with (
        open_host(server.config(python="/no/such/python")) as host,
        pytest.raises(ConfigError, match=r"host\.python='/no/such/python': a Python >= 3\.9 on host loopback"),
    ):
        host.facts()


def test_a_dropped_connection_ends_the_engine_there(tmp_path: Path) -> None:
    with SshServer(tmp_path / "sshd") as server, open_host(server.config()) as host:
        engine, pids = started(host, tmp_path)
        server.cut()
        assert wait_for(lambda: not engine.alive())
        with pytest.raises(HostFailure, match=r"was lost: host loopback .*the ssh connection was lost"):
            engine.check()
        assert not engine.healthy()
        assert gone(pids)
        assert engine.stop().problem is None
        again, pids = started(host, tmp_path)  # over a new connection
        assert again.stop().problem is None
        assert gone(pids)


def test_a_host_that_dies_for_good_is_said(tmp_path: Path) -> None:
    with SshServer(tmp_path / "sshd") as server, open_host(server.config(connect_timeout_s=2.0)) as host:
        engine, pids = started(host, tmp_path)
        server.kill()
        assert wait_for(lambda: not engine.alive())
        assert "it is not known whether all has ended there" in (engine.stop().problem or "")
        assert gone(pids)  # which is the keeper's doing
        with pytest.raises(HostFailure, match="cannot be reached"):
            host.used_gib(0)


def test_silence_ends_the_engine_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is dead without either end having noticed: here, a program that holds it and stands still."""
    monkeypatch.setattr("runners.hosts.ssh.SILENCE_S", 1.5)
    monkeypatch.setattr("runners.hosts.ssh_process.HEARTBEAT_S", 0.3)
    with SshServer(tmp_path / "sshd") as server, open_host(server.config()) as host:
        engine, pids = started(host, tmp_path)
        time.sleep(2.0)
        assert engine.alive()  # the heartbeat keeps it
        below = psutil.Process().children(recursive=True)
        lines = [each for each in below if each.name() == "ssh" and str(tmp_path) in " ".join(each.cmdline())]
        (holder,) = [each for each in lines if "-M" in each.cmdline()]
        holder.suspend()
        assert gone(pids)
        holder.resume()
        assert wait_for(lambda: not engine.alive())
        assert engine.stop().exit_code == -signal.SIGTERM


def test_a_killed_client_leaves_nothing_there(server: SshServer, tmp_path: Path) -> None:
    script = write_server(tmp_path, before=FAMILY)
    code = (
        f"import sys, time; sys.path[:0] = [{str(ROOT)!r}]\n"
        "from pathlib import Path\nfrom runners.hosts import HostConfig, open_host\n"
        "from runners.server import Server, ServerCommand\n"
        f"host = open_host(HostConfig(**{vars(server.config())!r}))\n"
        f"command = ServerCommand([sys.executable, {str(script)!r}, '{{port}}'], host=host, grace_s=0.5)\n"
        f"server = Server.start(command, Path({str(tmp_path / 'log')!r}))\n"
        "print(server.pid, *server.log_tail().split()[1:3], flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        pids = [int(pid) for pid in client.stdout.readline().split()]
        assert len(pids) == 3
        below = [each.pid for each in psutil.Process(client.pid).children(recursive=True)]
        assert len(below) >= 2  # the connection, its keeper, and the line of the engine
        client.kill()
    assert gone([*pids, *below])
    (left,) = Path(tempfile.gettempdir()).glob(f"ddbench-ssh-*-{client.pid}-*")
    with open_host(server.config()) as host:
        host.connect()
    assert not left.exists()


def test_a_connection_survives_the_loss_of_its_folder(tmp_path: Path) -> None:
    """What tidies up a folder for temporary files may take it; an engine under way is lost, and the next is not."""
    with SshServer(tmp_path / "sshd") as server, open_host(server.config()) as host:
        engine, pids = started(host, tmp_path)
        shutil.rmtree(host._connection.folder)
        assert host.run(["true"]).ok
        assert wait_for(lambda: not engine.alive())
        assert engine.stop().problem is None
        assert gone(pids)
        again, pids = started(host, tmp_path)
        assert again.stop().problem is None


def test_only_folders_of_processes_that_can_be_seen_from_here_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another PID namespace has numbers of its own."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    here = Path(tempfile.gettempdir())
    away = here / f"ddbench-ssh-{'f' * 6}-{2**22 + 1}-left"
    ours = here / f"ddbench-ssh-{place()[:6]}-{2**22 + 1}-left"
    for folder in (away, ours):
        folder.mkdir()
    made = connection._private_folder()
    try:
        assert (away.exists(), ours.exists()) == (True, False)
    finally:
        made.rmdir()
        away.rmdir()


def test_what_a_login_shell_says_spoils_nothing(tmp_path: Path) -> None:
    """A start-up file that prints: answers, copies and processes are found behind it."""
    with (
        SshServer(tmp_path / "sshd", banner="hello from a start-up file") as server,
        open_host(server.config()) as host,
    ):
        assert host.run(["true"]).stdout.startswith("hello from")
        assert host.facts()["gpus"] == []
        (tmp_path / "file").write_text("content\n")
        host.put(tmp_path / "file", host.path("file"))
        host.get(host.path("file"), tmp_path / "back")
        assert (tmp_path / "back").read_text() == "content\n"
        engine, pids = started(host, tmp_path)
        assert engine.stop().problem is None
        assert gone(pids)


def test_a_killed_keeper_leaves_nothing_there(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.hosts.ssh_process.KEEPER_MARGIN_S", 0.3)
    engine, pids = started(host, tmp_path)
    os.kill(engine.pid, signal.SIGKILL)
    assert gone(pids[:2])
    assert not engine.healthy()
    assert engine.stop().problem is None
    assert gone(pids)


def test_a_keeper_that_hangs_does_not_hold_up_the_end(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runners.hosts.ssh_process.KEEPER_MARGIN_S", 0.3)
    engine, pids = started(host, tmp_path)
    os.kill(engine.pid, signal.SIGSTOP)
    assert engine.stop().problem is None
    assert gone(pids)


@contextmanager
def full_disk(folder: Path) -> Iterator[tuple[str, int | None]]:
    """A place with room for little: a small tmpfs where this user may mount one, else by a limit on every file's size.
    The limit is the second value; None where the place itself is small."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        yield str(folder), 200_000
        return
    try:
        yield str(folder), None
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_there_is_said(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(2**20))
    with full_disk(tmp_path / "small") as (place, limit), SshServer(tmp_path / "sshd", largest=limit) as server:
        with open_host(server.config(workdir=f"{place}/work")) as host:
            there = host.path("models", "big")
            with pytest.raises(HostFailure, match=r"cannot write .*models/big: (No space left|File too large)"):
                host.put(big, there)
            assert not host.run(["test", "-e", there]).ok
            assert host.run(["ls", "-A", host.path("models")]).stdout == ""
        if limit is None:
            Path(place, "filler").write_bytes(b"\0" * 4096 * 1)
            rest = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
            Path(place, "filler").write_bytes(b"\0" * (4096 + rest))
            with (
                open_host(server.config(workdir=f"{place}/new")) as host,
                pytest.raises(HostFailure, match=r"cannot write .*keeper.*\.py: No space left"),
            ):
                host.start(["true"], log=tmp_path / "log")


NUMBER = 10_000 + os.getpid()  # of a GPU that no machine has: its lock alone is real


def pool(server: SshServer, **changes: object) -> HostConfig:
    up, also = {"name": "up", "gpus": [NUMBER]}, {"name": "also", "gpus": [NUMBER + 1]}
    entries = ({"name": "down", "port": free_port()}, up, also)
    return server.config(name="pool", hosts=entries, **changes)


def test_a_list_of_hosts_gives_the_first_that_is_free(server: SshServer) -> None:
    with claimed(pool(server)) as first:
        assert (first.name, first.member, first.port) == ("pool", "up", server.port)
        with claimed(pool(server)) as second:
            assert second.member == "also"
            with (
                pytest.raises(ConfigError, match=r"host\.hosts=.*down: .*refused.*up: .*also: "),
                claimed(pool(server)),
            ):
                pass
    with claimed(pool(server)) as again:
        assert again.member == "up"
    with claimed(pool(server), dry_run=True) as dry:
        assert dry.member == "down"


@pytest.mark.parametrize("gpus", [None, [NUMBER, NUMBER + 1]])
def test_gpus_that_overlap_are_not_held_twice(tmp_path: Path, gpus: list[int] | None) -> None:
    """All that the host has, or some of them."""
    write_smi(tmp_path / "programs", {**VALUES, "index": str(NUMBER)})
    with SshServer(tmp_path / "sshd", programs=tmp_path / "programs") as server:
        many, one = (server.config(name="pool", hosts=({"name": "x", "gpus": each},)) for each in (gpus, [NUMBER]))
        with claimed(many), pytest.raises(ConfigError, match="no other process works on"), claimed(one):
            pass
        with claimed(one):
            pass


def test_a_host_of_a_list_stays_held_through_a_lost_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiments.holding, "LOOK_S", 0.1)
    with SshServer(tmp_path / "sshd") as server:
        one = server.config(name="pool", hosts=({"name": "up", "gpus": [NUMBER]},))

        def is_free() -> bool:
            try:
                with claimed(one):
                    return True
            except ConfigError:
                return False

        with claimed(one):
            server.cut()
            time.sleep(0.5)
            assert wait_for(lambda: not is_free())
            time.sleep(0.5)
            assert not is_free()
        assert wait_for(is_free)
