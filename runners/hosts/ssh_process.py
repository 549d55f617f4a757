"""A program on a host behind ssh: what is here is its line to :mod:`runners.keeper` there."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runners.hosts.base import HostFailure

HEARTBEAT_S = 3.0
SILENCE_S = 60.0  # after which the host ends the program: the client or the connection is taken for dead
START_TIMEOUT_S = 60.0
KEEPER_MARGIN_S = 10.0  # what keeper and connection may need beyond the grace period
LOST = 255  # exit status while the true one is not known

Bury = Callable[[float], str | None]  # waits that long, then kills what is left; what stays, in words


class SshProcess:
    """See :class:`runners.hosts.base.Process`. ``order`` is what the keeper is told; ``status`` takes what it says."""

    def __init__(
        self,
        command: Sequence[str],
        order: dict[str, Any],
        log: Path,
        status: Path,
        *,
        name: str,
        bury: Bury,
        listens: Callable[[int], bool],
    ) -> None:
        self._status, self._name, self._grace_s = status, name, float(order["grace_s"])
        self._bury, self._listens = bury, listens
        self._ended: tuple[str | None] | None = None
        self._quiet = threading.Event()
        with log.open("ab") as out, status.open("wb") as said:
            # A session of its own: Ctrl-C on the terminal must not cut the line.
            self._child = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=out, stderr=said, start_new_session=True
            )
        self._say(json.dumps(order).encode() + b"\n")
        threading.Thread(target=self._beat, daemon=True).start()
        self._pid = self._first_word()

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        return None if self._child.poll() is None else self._told("exit", LOST)

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
        return self.poll()

    @property
    def lost(self) -> str | None:
        if self._child.poll() is None or self._told("exit", None) is not None:
            return None
        return f"{self._name}: the ssh connection was lost ({self._words() or 'ssh was ended'})"

    def listens(self, port: int) -> bool:
        return self._listens(port)

    def stop(self) -> str | None:
        if self._ended is None:
            self._quiet.set()
            with contextlib.suppress(OSError):
                self._stdin.close()  # which is the order to end
            self.wait(self._grace_s + KEEPER_MARGIN_S)
            problem = None
            if self._told("exit", None) is None:
                problem = self._bury_there()
            self._child.kill()
            self._child.wait()
            self._ended = (problem,)
        return self._ended[0]

    def _bury_there(self) -> str | None:
        """After a loss, or with a keeper that does not answer."""
        try:
            return self._bury(self._grace_s)
        except Exception as error:  # noqa: BLE001  whatever it is: the end goes on, and what is not known is said
            return f"it is not known whether all has ended there; a keeper does that in {SILENCE_S:g} s ({error})"

    @property
    def _stdin(self) -> Any:
        assert self._child.stdin is not None
        return self._child.stdin

    def _say(self, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # a line that is gone shows in poll()
            self._stdin.write(data)
            self._stdin.flush()

    def _beat(self) -> None:
        while not self._quiet.wait(HEARTBEAT_S) and self._child.poll() is None:
            self._say(b"\n")

    def _first_word(self) -> int:
        """The keeper's process on the host. Raises HostFailure if it says nothing."""
        waited = threading.Event()
        for _ in range(int(START_TIMEOUT_S / 0.02)):
            pid: int | None = self._told("pid", None)
            if pid is not None:
                return pid
            if self._child.poll() is not None:
                break
            waited.wait(0.02)
        pid = self._told("pid", None)
        if pid is not None:
            return pid
        words = self._words()
        self._quiet.set()
        self._child.kill()
        self._child.wait()
        raise HostFailure(f"{self._name}: nothing can be started there ({words or 'no answer'})")

    def _told(self, key: str, default: Any) -> Any:
        """What the keeper said under a key."""
        for line in self._lines():
            if line.startswith("{") and line.endswith("}"):
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    if key in said:
                        return said[key]
        return default

    def _words(self) -> str:
        """The last thing that ssh itself, or Python there, said."""
        return next((line for line in reversed(self._lines()) if line and not line.startswith("{")), "")

    def _lines(self) -> list[str]:
        if not self._status.exists():
            return []
        return [line.strip() for line in self._status.read_text(encoding="utf-8", errors="replace").splitlines()]
