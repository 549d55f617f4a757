"""A user of the host who may do little, behind a real sshd. Where the tests run as root it is a user of its own, made
in a mount namespace that only this sshd sees (a table of users of its own); else it is the user who runs them."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ssh_servers import SSHD, SshServer

# The machine's own: one in a folder of the user who runs the tests cannot be run by another.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or sys.executable
NAME, NUMBER = "ddbench-guest", 54321
WITH_USERS = 'mount --bind "$1" /etc/passwd && shift && exec "$@"'  # ours, with the table as its first argument


class GuestServer(SshServer):
    """``home`` is all that the guest may write; ``folder`` can be read by it."""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def __enter__(self) -> GuestServer:
        self.home.mkdir(parents=True)
        if os.getuid() == 0:
            os.chown(self.home, NUMBER, NUMBER)
        super().__enter__()
        return self

    def config(self, **changes: Any) -> Any:
        known = {"user": guest(), "python": PYTHON, "workdir": str(self.home / "work")}
        return super().config(**(known | changes))

    def _command(self) -> list[str]:
        command = super()._command()
        if os.getuid() != 0:
            return command
        options = self.folder / "sshd_config"
        options.write_text(options.read_text().replace(f"AllowUsers {getpass.getuser()}", f"AllowUsers {NAME}"))
        users = self.folder / "passwd"
        table = Path("/etc/passwd").read_text(encoding="utf-8")
        users.write_text(f"{table}{NAME}:x:{NUMBER}:{NUMBER}::{self.home}:/bin/sh\n", encoding="utf-8")
        return ["unshare", "--mount", "sh", "-c", WITH_USERS, "sh", str(users), *command]


def guest() -> str:
    return NAME if os.getuid() == 0 else getpass.getuser()


@contextmanager
def guest_server() -> Iterator[GuestServer]:
    """In a folder that every user may look into, which those of pytest are not."""
    if SSHD is None:
        pytest.skip("users of their own need OpenSSH's server (sshd), which .ci/run installs")
    folder = Path(tempfile.mkdtemp(prefix="ddbench-guest-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        with GuestServer(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)
