"""Stands between ddbench and an engine server, so that neither outlives the other.

Run by path, in a session of its own, with nothing but Python >= 3.9: hosts behind ssh need no more. Two ways:

    python -I keeper.py GRACE_S PARENT_PID [--lock NAME]... -- COMMAND...
    python -I keeper.py -

It starts the command, waits for it and ends with its exit status. When it is told to end (SIGTERM), or its parent is
gone, or the command itself has ended, every process that came from the command gets SIGTERM, and SIGKILL after the
grace period. On Linux the orphans of the command become children of this process (``PR_SET_CHILD_SUBREAPER``, see
prctl(2)), so that even one that has left the process group is found, and the command is killed if this process is
(``PR_SET_PDEATHSIG``). A lock (flock(2) of a file in ``LOCKS``) that another process holds ends it before the command
starts.

With ``-`` it is told what to do by one line of JSON on standard input: ``argv``, ``env`` (changes, null takes a
variable away), ``locks``, ``grace_s`` and ``silence_s``. Its parent is gone when standard input ends, or has said
nothing for ``silence_s`` seconds: a connection can be dead without either end having noticed. Standard output and
standard error of the command both go to standard output; standard error tells, in lines of JSON, ``pid`` at the start
and ``exit`` at the end.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.05
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
LOCKED = 75  # exit status when a lock is held by another; EX_TEMPFAIL of <sysexits.h>
NOT_STARTED = 127  # exit status, as a shell gives it, when the command cannot be executed
# One folder for all users, runs and ways to a machine, whatever TMPDIR says: who looks elsewhere sees no lock.
LOCKS = Path("/tmp/ddbench-locks")
SENT = "-"  # in the place of the arguments: they come over standard input


def main(grace_s: float, command: list[str], locks: list[str], connected: Callable[[], bool]) -> int:
    """Runs ``command`` to its end; returns its exit status, negative for a signal."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: told.append(received))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    problem = next((said for said in map(lock, locks) if said), None)
    if problem is not None:
        sys.stderr.write(problem + "\n")
        return LOCKED
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _die_with(keeper))
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return NOT_STARTED
    while server.poll() is None and not told and connected():
        time.sleep(POLL_S)
    _end_descendants(server, grace_s)
    return server.wait()


class Line:
    """Standard input as a sign of life: whether somebody is still at its other end."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s, self._heard = silence_s, time.monotonic()

    def connected(self) -> bool:
        while select.select([0], [], [], 0)[0]:
            if not os.read(0, 4096):
                return False
            self._heard = time.monotonic()
        return time.monotonic() - self._heard < self._silence_s


def read_line() -> bytes:
    """One line of standard input, and not a byte more."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line


def sent() -> int:
    """The whole life of a keeper that is told over standard input; returns its exit status."""
    line = read_line()
    if not line:
        return NOT_STARTED
    told = json.loads(line)
    if os.getpgid(0) != os.getpid():
        os.setsid()
    status = os.dup(2)
    os.dup2(1, 2)
    for name, value in told["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _tell(status, {"pid": os.getpid()})
    code = main(told["grace_s"], told["argv"], told["locks"], Line(told["silence_s"]).connected)
    _tell(status, {"exit": code})
    return 0


def _tell(status: int, what: dict[str, int]) -> None:
    try:
        os.write(status, json.dumps(what).encode() + b"\n")
    except OSError:
        return  # nobody is there to hear it


def lock(name: str) -> str | None:
    """Holds a lock of this machine until this process ends; why that cannot be, in words."""
    path = LOCKS / f"{name}.lock"
    try:
        descriptor = _open_for_all(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            return f"cannot lock {path}: {error.strerror}"
        holder = path.read_text(encoding="utf-8").strip()
        return f"{name} is in use by process {holder or 'unknown'} (lock file {path})"
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return None


def _open_for_all(path: Path) -> int:
    """A file that every user of the machine may open, whoever made it. Raises OSError."""
    before = os.umask(0)
    try:
        path.parent.mkdir(mode=0o1777, exist_ok=True)
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        for how in (flags, flags | os.O_CREAT | os.O_EXCL, flags):  # another may make it between the first two
            try:
                return os.open(path, how, 0o666)
            except (FileNotFoundError, FileExistsError):
                continue
        return os.open(path, flags)
    finally:
        os.umask(before)


def _end_descendants(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to all that is left of the command's processes, SIGKILL to what is there after ``grace_s`` seconds."""
    _signal_all(server, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _living(server):
        if time.monotonic() >= deadline:
            _signal_all(server, signal.SIGKILL)
        time.sleep(POLL_S)


def _living(server: subprocess.Popen[bytes]) -> list[int]:
    """Descendants that still run; those that have ended are reaped on the way."""
    server.poll()  # before the others: its exit status is ours to hand on
    living = []
    for pid, parent, state in descendants(os.getpid()):
        if not state.startswith("Z"):
            living.append(pid)
        elif pid != server.pid and parent == os.getpid():
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
    return living


def descendants(root: int) -> list[tuple[int, int, str]]:
    """Process, parent and state of all that came from ``root``, which is not among them."""
    children: dict[int, list[tuple[int, int, str]]] = {}
    for each in _processes():
        children.setdefault(each[1], []).append(each)
    found, unread = [], [root]
    while unread:
        below = children.get(unread.pop(), [])
        found += below
        unread += [pid for pid, _, _ in below]
    return found


def _processes() -> list[tuple[int, int, str]]:
    """Process, parent and state of everything that runs: from proc(5), or ps where there is none."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True)
        rows = [line.split() for line in listed.stdout.splitlines()]
        return [(int(pid), int(parent), state) for pid, parent, state in rows]
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            state, parent = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found.append((int(place.name), int(parent), state))
    return found


def _signal_all(server: subprocess.Popen[bytes], number: int) -> None:
    for pid in _living(server):
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _die_with(keeper: int) -> None:
    """In the child: be killed when the keeper dies, and not run at all if it has died already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(NOT_STARTED)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _leave(status: int) -> None:
    """Ends this process as the command ended: with its exit status, or by the same signal and without a core file."""
    if status >= 0:
        sys.exit(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


def _kept(arguments: list[str]) -> int:
    """The whole life of a keeper whose parent is a process here; returns the command's exit status."""
    grace_s, parent, *rest = arguments
    split = rest.index("--")
    locks = [each for each in rest[:split] if each != "--lock"]
    return main(float(grace_s), rest[split + 1 :], locks, lambda: os.getppid() == int(parent))


if __name__ == "__main__":
    _leave(sent() if sys.argv[1:] == [SENT] else _kept(sys.argv[1:]))
