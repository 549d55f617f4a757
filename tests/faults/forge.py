"""Starts ``python -m ddbench`` many times without importing it as often: ``python forge.py``.

A line of JSON on standard input, ``{"arguments", "out", "err", "code"}``, forks a process that runs the command line
with its streams in the files ``out`` and ``err``; its number is printed, and its exit status written to ``code`` when
it ends.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import standin

import reports
from ddbench import __main__ as door

POLL_S = 0.005


def main() -> None:
    running: dict[int, Path] = {}
    _say("ready")
    while True:
        if select.select([sys.stdin], [], [], POLL_S)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            job = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(job)
            running[pid] = Path(job["code"])
            _say(str(pid))
        _reap(running)


def _become(job: dict[str, Any]) -> None:
    for descriptor, name in ((1, job["out"]), (2, job["err"])):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
    sys.argv = ["ddbench", *job["arguments"]]
    try:
        code = door.run()
    except BaseException:  # noqa: BLE001  as the interpreter would
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _reap(running: dict[int, Path]) -> None:
    for pid, code in list(running.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            del running[pid]
            draft = code.with_suffix(".draft")
            draft.write_text(str(os.waitstatus_to_exitcode(status)))
            draft.replace(code)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


assert reports, standin  # loaded once, for all
if __name__ == "__main__":
    main()
