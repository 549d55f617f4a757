"""Stands between ddbench and an engine server, so that neither outlives the other.

Run by path as ``python -I keeper.py GRACE_S PARENT_PID COMMAND...`` in a session of its own. It starts the command,
waits for it and ends with its exit status. When it is told to end (SIGTERM), or its parent is gone, or the command
itself has ended, every process that came from the command gets SIGTERM, and SIGKILL after the grace period. On Linux
the orphans of the command become children of this process (``PR_SET_CHILD_SUBREAPER``, see prctl(2)), so that even one
that has left the process group is found, and the command is killed if this process is (``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time

import psutil

POLL_S = 0.05
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
NOT_STARTED = 127  # exit status, as a shell gives it, when the command cannot be executed


def main(grace_s: float, parent: int, command: list[str]) -> int:
    """Runs ``command`` to its end; returns its exit status, negative for a signal."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: told.append(received))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _die_with(keeper))
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return NOT_STARTED
    while server.poll() is None and not told and os.getppid() == parent:
        time.sleep(POLL_S)
    _end_descendants(server, grace_s)
    return server.wait()


def _end_descendants(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to all that is left of the command's processes, SIGKILL to what is there after ``grace_s`` seconds."""
    _signal_all(server, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while _living(server):
        if time.monotonic() >= deadline:
            _signal_all(server, signal.SIGKILL)
        time.sleep(POLL_S)


def _living(server: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Descendants that still run; those that have ended are reaped on the way."""
    server.poll()  # before the others: its exit status is ours to hand on
    living = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
            elif process.pid != server.pid and process.ppid() == os.getpid():
                os.waitpid(process.pid, os.WNOHANG)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
    return living


def _signal_all(server: subprocess.Popen[bytes], number: int) -> None:
    for process in _living(server):
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
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


if __name__ == "__main__":
    _leave(main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
