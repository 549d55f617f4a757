"""Real ssh servers on loopback, each with keys of its own: OpenSSH's where there is one, else asyncssh's."""

from __future__ import annotations

import contextlib
import getpass
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from runners.hosts import HostConfig
from runners.ports import free_port

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")
if os.environ.get("DDBENCH_TEST_SSH") == "asyncssh":
    SSHD = None  # as on a machine that has none
KINDS = (["openssh"] if SSHD else []) + ["asyncssh"]
# What the key may do: run commands and reach the host's own loopback. No terminal, no agent, no other machine.
RESTRICTED = 'restrict,port-forwarding,permitopen="127.0.0.1:*"'


@dataclass
class SshServer:
    """A server in ``folder``, which also takes its keys. ``config`` is how ddbench reaches it.

    ``programs``: a folder whose programs the host finds before all others. ``largest``: bytes that a file there may
    have, so that a small one fills the disk (RLIMIT_FSIZE of getrlimit(2)). ``variables``: of the host's environment.
    ``banner``: what its login shell says before every command.
    """

    folder: Path
    kind: str = KINDS[0]
    port: int = field(default_factory=free_port)
    programs: Path | None = None
    largest: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    banner: str | None = None
    process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SshServer:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("host_key", "user_key"):
            if not (self.folder / name).exists():
                make_key(self.folder / name)
        key = (self.folder / "host_key.pub").read_text().split()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n")
        public = (self.folder / "user_key.pub").read_text()
        may = RESTRICTED
        if self.banner is not None and self.kind != "asyncssh":
            may += f',command="{self._says()}; eval \\"$SSH_ORIGINAL_COMMAND\\""'
        (self.folder / "authorized_keys").write_text(f"{may} {public}")
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment()},
                preexec_fn=self._limit,
            )
        deadline = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.folder / "server.log").read_text())
            time.sleep(0.02)

    def kill(self) -> None:
        """Ends the server and, as a power cut would, every connection it has."""
        if self.process is None or self.process.poll() is not None:
            return
        for pid in [*connections(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def cut(self) -> None:
        """Ends every connection; the server goes on."""
        assert self.process is not None
        if self.kind == "openssh":
            for pid in connections(self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        else:
            self.kill()
            self.start()

    def config(self, **changes: Any) -> HostConfig:
        values = {
            "name": "loopback",
            "kind": "ssh",
            "address": "127.0.0.1",
            "user": getpass.getuser(),
            "port": self.port,
            "key": str(self.folder / "user_key"),
            "known_hosts": str(self.folder / "known_hosts"),
            "python": sys.executable,
            "workdir": str(self.folder / "work dir"),
            "connect_timeout_s": 5.0,
        }
        return HostConfig(**(values | changes))

    def overrides(self, **changes: Any) -> list[str]:
        """The same on a command line."""
        config = self.config(**changes)
        names = ("address", "user", "port", "key", "known_hosts", "python", "workdir", "name")
        return ["host=pro6000", *(f"host.{name}={quoted(getattr(config, name))}" for name in names)]

    def _says(self) -> str:
        return f"echo {self.banner}; echo {self.banner} >&2"

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([*([str(self.programs)] if self.programs else []), os.environ["PATH"]])
        return {"PATH": path, **self.variables}

    def _limit(self) -> None:
        if self.largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.largest, self.largest))

    def _command(self) -> list[str]:
        if self.kind == "asyncssh":
            script = Path(__file__).with_name("asyncssh_server.py")
            told = [str(self.folder), str(self.port), getpass.getuser()]
            return [sys.executable, str(script), *told, *([self._says()] if self.banner else [])]
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd started by root insists on it
        options = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": self.folder / "host_key",
            "AuthorizedKeysFile": self.folder / "authorized_keys",
            "AllowUsers": getpass.getuser(),
            "PermitRootLogin": "prohibit-password",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PidFile": "none",
            "MaxStartups": "100",
            "SetEnv": " ".join(f'"{name}={value}"' for name, value in self._environment().items()),
        }
        (self.folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in options.items()))
        return [str(SSHD), "-D", "-e", "-f", str(self.folder / "sshd_config")]


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def connections(server: int) -> list[int]:
    """Processes of the server's connections, without what runs over them."""
    found = []
    for process in psutil.Process(server).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("sshd"):
                found.append(process.pid)
    return found


def quoted(value: Any) -> str:
    """A value as Hydra's command line takes it."""
    return f"'{value}'" if isinstance(value, str) else str(value)
