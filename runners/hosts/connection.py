"""One connection of the system's ``ssh`` to a host, held open and shared (ControlMaster of ssh_config(5)).

The program that holds it runs under :mod:`runners.keeper`, so that it ends with this process. Commands that find it
gone fail at once (they may not connect by themselves), which is how a loss is noticed.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeVar

import psutil

from ddbench.errors import ConfigError
from runners.hosts.base import Completed, HostFailure
from runners.hosts.config import HostConfig
from runners.hosts.local import LocalHost, LocalProcess
from runners.places import place

T = TypeVar("T")

POLL_S = 0.02
ALIVE_INTERVAL_S, ALIVE_COUNT = 5, 3  # a silent connection is given up after fifteen seconds
MARGIN_S = 15.0  # that a command's own time limit may need to work
TIMED_OUT = 124  # exit status of timeout(1)
SSH_FAILED = 255  # exit status of ssh(1) for a failure of its own, and of a command that a signal ended
FOLDER = "ddbench-ssh-"
LONGEST_PLACE = 46  # characters; unix(7) allows 108 for the whole, and ssh adds to the name while it makes it


class Connection:
    """Held from the first :meth:`ensure` to :meth:`close`. ``folder`` is private to this user and process."""

    def __init__(self, config: HostConfig) -> None:
        self.config = config
        self.folder: Path | None = None
        self._master: LocalProcess | None = None
        self._reached = False  # once: what is refused after that is no mistake in the configuration
        self._lock = threading.RLock()

    def ensure(self) -> None:
        """Connects if there is no living connection; see :meth:`runners.hosts.base.Host.connect`."""
        with self._lock:
            if not self.alive():
                self._drop()
                try:
                    self._connect()
                except ConfigError as error:
                    if not self._reached:
                        raise
                    raise HostFailure(f"{self.name} was reached before, and is not now ({error})") from None
                self._reached = True

    def alive(self) -> bool:
        """Whether the connection is there, as far as can be told from here."""
        return self._master is not None and self._master.poll() is None and self._control("check").ok

    def run(self, line: str, timeout_s: float, input: bytes | None) -> Completed:
        """Runs a quoted command line to its end. Raises HostFailure when the connection or the time is lost."""
        self.ensure()
        try:
            done = subprocess.run(
                self.arguments(_limited(line, timeout_s)),
                input=input or b"",
                capture_output=True,
                timeout=timeout_s + MARGIN_S,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise HostFailure(f"{self.name} did not answer in {timeout_s:g} s") from None
        return self._judged(
            done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), timeout_s
        )

    def stream(
        self, line: str, timeout_s: float, send: Callable[[IO[bytes]], T] | None, take: Callable[[IO[bytes]], T] | None
    ) -> Completed:
        """Like :meth:`run`, with a function that writes its standard input, or one that reads its standard output."""
        self.ensure()
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as printed:
            child = subprocess.Popen(
                self.arguments(_limited(line, timeout_s)),
                stdin=subprocess.PIPE if send else subprocess.DEVNULL,
                stdout=subprocess.PIPE if take else printed,
                stderr=said,
                start_new_session=True,
            )
            try:
                if send and child.stdin:
                    with contextlib.suppress(BrokenPipeError), child.stdin:
                        send(child.stdin)
                if take and child.stdout:
                    with child.stdout:
                        take(child.stdout)
                code = child.wait(timeout_s + MARGIN_S)
            except subprocess.TimeoutExpired:
                raise HostFailure(f"{self.name} did not answer in {timeout_s:g} s") from None
            finally:
                child.kill()
                child.wait()
            texts = []
            for stream in (printed, said):
                stream.seek(0)
                texts.append(stream.read().decode(errors="replace"))
        return self._judged(code, texts[0], texts[1], timeout_s)

    def arguments(self, line: str) -> list[str]:
        """The command that runs a quoted command line over this connection, and over no other."""
        return [
            *self._base(),
            "-o",
            "ProxyCommand=false",
            "-o",
            "ClearAllForwardings=yes",
            self.config.destination,
            line,
        ]

    def tunnel(self, local: int, remote: int) -> bool:
        """Leads a port of this machine's loopback to one of the host's; False if the port here is taken."""
        self.ensure()
        return self._control("forward", "-L", f"127.0.0.1:{local}:127.0.0.1:{remote}").ok

    def end_tunnel(self, local: int, remote: int) -> None:
        if self._master is not None and self._master.poll() is None:
            self._control("cancel", "-L", f"127.0.0.1:{local}:127.0.0.1:{remote}")

    def close(self) -> None:
        """Ends the connection. Safe to call twice."""
        with self._lock:
            self._drop()
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder = None

    @property
    def name(self) -> str:
        """The host, for messages."""
        port = f" port {self.config.port}" if self.config.port else ""
        return f"host {self.config.member or self.config.name} ({self.config.destination}{port})"

    def loss(self) -> str:
        """How the connection ended, in ssh's own words."""
        return f"{self.name}: the ssh connection was lost ({self._last_words() or 'ssh was ended'})"

    def _connect(self) -> None:
        config = self.config
        config.check_files()
        if shutil.which("ssh") is None:
            raise ConfigError("host.kind", config.kind, "local: there is no `ssh` program on this machine")
        if self.folder is None or not self.folder.is_dir():  # whoever tidies up /tmp may have taken it
            self.folder = _private_folder()
        log = self.folder / "ssh.log"
        log.unlink(missing_ok=True)
        command = [*self._base(), "-M", "-N", "-o", "ClearAllForwardings=yes", config.destination]
        self._master = LocalHost().start(command, log=log, grace_s=1.0)
        deadline = time.monotonic() + config.connect_timeout_s + ALIVE_INTERVAL_S
        while not (self.folder / "ssh").exists():
            if self._master.poll() is not None:
                raise self._refusal()
            if time.monotonic() > deadline:
                self._drop()
                raise HostFailure(f"{self.name} did not answer in {config.connect_timeout_s:g} s")
            time.sleep(POLL_S)

    def _refusal(self) -> Exception:
        """Why there is no connection: what the user can mend is a ConfigError."""
        config, said = self.config, self._last_words()
        text = (self.folder / "ssh.log").read_text(errors="replace") if self.folder else ""
        if "Host key verification failed" in text or "host key is known" in text:
            file = config.known_hosts or "~/.ssh/known_hosts"
            wrong = "IDENTIFICATION HAS CHANGED" in text
            why = "it shows another key than the one there" if wrong else "its key is not there"
            line = f"ssh-keyscan -p {config.port or 22} {config.address}"
            return ConfigError(
                "host.known_hosts",
                config.known_hosts,
                f"a file with the key of {self.name}: {why} ({file}). `{line}` shows its key; compare it with the "
                "host's own before you trust it",
            )
        if "Permission denied" in text or "Too many authentication failures" in text:
            return ConfigError("host.key", config.key, f"a key that {self.name} accepts ({said})")
        if "Could not resolve hostname" in text:
            return ConfigError("host.address", config.address, f"a host that can be found ({said})")
        return HostFailure(f"{self.name} cannot be reached ({said or 'ssh gave no reason'})")

    def _last_words(self) -> str:
        if self.folder is None or not (self.folder / "ssh.log").exists():
            return ""
        lines = (self.folder / "ssh.log").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _judged(self, code: int, stdout: str, stderr: str, timeout_s: float) -> Completed:
        if code == SSH_FAILED and not self.alive():
            raise HostFailure(self.loss())
        if code == TIMED_OUT:
            raise HostFailure(f"{self.name}: a command took more than {timeout_s:g} s and was ended")
        return Completed(code, stdout, stderr)

    def _control(self, verb: str, *more: str) -> Completed:
        """Tells the program that holds the connection something, here."""
        command = [*self._base(), "-O", verb, *more, self.config.destination]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True)
        return Completed(done.returncode, done.stdout, done.stderr)

    def _drop(self) -> None:
        master, self._master = self._master, None
        if master is not None:
            master.stop()
        if self.folder is not None:
            (self.folder / "ssh").unlink(missing_ok=True)

    def _base(self) -> list[str]:
        config = self.config
        assert self.folder is not None
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UpdateHostKeys": "no",
            "ConnectTimeout": str(math.ceil(config.connect_timeout_s)),
            "ConnectionAttempts": "1",
            "ServerAliveInterval": str(ALIVE_INTERVAL_S),
            "ServerAliveCountMax": str(ALIVE_COUNT),
            "ControlPersist": "no",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "PermitLocalCommand": "no",
            "RemoteCommand": "none",
            "RequestTTY": "no",
            "LogLevel": "ERROR",
        }
        if config.known_hosts is not None:
            options |= {"UserKnownHostsFile": _file(config.known_hosts), "GlobalKnownHostsFile": "/dev/null"}
        if config.key is not None:
            options |= {"IdentityFile": _file(config.key), "IdentitiesOnly": "yes"}
        if config.port is not None:
            options["Port"] = str(config.port)
        pairs = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        return ["ssh", "-T", "-S", str(self.folder / "ssh"), *pairs]


def _limited(line: str, timeout_s: float) -> str:
    """A command line that the host itself ends, so that nothing is left there when the connection goes."""
    return f"exec timeout -k 5 {timeout_s:.3f} {line}"


def _private_folder() -> Path:
    """A new folder for a socket, whose name must be short. Those of processes that were killed are removed."""
    folder = Path(tempfile.gettempdir())
    folder = folder if len(str(folder)) <= LONGEST_PLACE else Path("/tmp")
    ours = f"{FOLDER}{place()[:6]}-"  # of processes that can be seen from here
    for left in folder.glob(f"{ours}*"):
        pid = left.name.removeprefix(ours).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{ours}{os.getpid()}-", dir=folder))


def _file(path: str) -> str:
    """A path of this machine as ssh_config takes it: quoted, and free of its percent tokens."""
    return '"' + str(Path(path).expanduser().resolve()).replace("%", "%%") + '"'
