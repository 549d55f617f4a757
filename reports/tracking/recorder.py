"""The sweep's side of W&B: asks a process of its own to log each cell as it ends, and the report at last.

A measured cell is never disturbed: the process is asked between two cells, the sweep waits until it has answered, and
it then does nothing until it is asked again. A cell is never failed: whatever goes wrong in W&B, be it missing,
refusing or hanging, is one warning for the whole run.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reports.tracking.leftovers import drop_empty, offline_runs
from reports.tracking.settings import WandbSettings

log = logging.getLogger(__name__)

START_S = 120.0  # longest wait for the process to come up; it starts beside the engine
REPORT_S = 600.0  # and for the report to be logged, uploads included
END_S = 10.0


class TrackingFailure(Exception):
    """W&B did not do what it was asked to."""


class Recorder:
    """Logs the cells and the report of the run folder ``folder``; a context manager that ends the process.

    With ``mode: disabled`` nothing is done and nothing is started.
    """

    def __init__(self, settings: WandbSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder.resolve()
        self.seconds = 0.0  # spent between cells so far
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._asked: tuple[str, set[Path]] | None = None  # W&B run that is being logged, and those of its id before
        self._down = settings.mode == "disabled"
        self._warned = False

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the process without waiting for it, where cells are to be logged as they end."""
        if self._down or not self.settings.cells:
            return
        if importlib.util.find_spec("wandb") is None:
            self._give_up("the package is not installed (pip install 'ddbench[wandb]')")
            return
        try:
            self._launch()
        except OSError as error:
            self._give_up(f"{type(error).__name__}: {error}")

    def ready(self) -> None:
        """Waits until the process has started: its imports are over before anything is measured."""
        if self._process is not None and not self._ready and not self._down:
            self._attempt(lambda: None)

    def cell(self, cell_id: str) -> None:
        """Logs a finished cell. After a failure it does nothing: :meth:`report` tries once more."""
        if self._down or not self.settings.cells:
            return
        clock = time.perf_counter()
        self._attempt(lambda: self._ask({"cell": cell_id}, self.settings.timeout_s))
        self.seconds += time.perf_counter() - clock

    def report(self) -> bool:
        """Logs the cells that W&B has not got, then the report; returns whether W&B has it all."""
        if self.settings.mode == "disabled":
            return False
        if importlib.util.find_spec("wandb") is None:
            self._give_up("the package is not installed (pip install 'ddbench[wandb]')")
            return False
        return self._attempt(self._everything)

    def close(self) -> None:
        """Ends the process, in good order where it is not at work."""
        if self._process is None:
            return
        process, self._process, self._ready = self._process, None, False
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            _kill(process)
        process.stdout.close()

    def _everything(self) -> None:
        if self.settings.cells:
            for status in sorted((self.folder / "cells").glob("*/status.json")):
                self._ask({"cell": status.parent.name}, self.settings.timeout_s)
        self._ask({"report": True}, max(REPORT_S, self.settings.timeout_s))

    def _attempt(self, what: Any) -> bool:
        try:
            if self._process is None:
                self._launch()
            if not self._ready:
                self._receive(START_S)
                self._ready = True
            what()
        except (TrackingFailure, OSError) as error:
            self._give_up(str(error))
            return False
        except BaseException:  # a signal in the midst of a request: its answer would be taken for the next one's
            self._kill()
            raise
        return True

    def _give_up(self, reason: str) -> None:
        self._down = True
        self._kill()
        if not self._warned:
            self._warned = True
            log.warning(
                "W&B: not logged (%s); the files are stored, experiment=report run=%s tracking=wandb logs what is "
                "missing",
                reason,
                self.folder,
            )

    def _launch(self) -> None:
        command = [sys.executable, "-m", "reports.tracking.worker", str(self.folder), json.dumps(asdict(self.settings))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            env=self._environment(),
            start_new_session=True,  # the terminal's Ctrl-C is the sweep's to handle
        )
        self._ready = False

    def _environment(self) -> dict[str, str]:
        """Ours, with ddbench's folder to import from; offline, all that W&B writes goes below the run folder."""
        path = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1"}
        if self.settings.mode == "offline":
            for name in ("CACHE", "DATA", "ARTIFACT"):
                environment.setdefault(f"WANDB_{name}_DIR", str(self.folder / "wandb"))
        return environment

    def _ask(self, request: dict[str, Any], timeout_s: float) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        run_id = request.get("cell") or os.environ.get("WANDB_RUN_ID") or f"{self.folder.name}-report"
        self._asked = run_id, offline_runs(self.folder, run_id)
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        self._receive(timeout_s)
        self._asked = None

    def _receive(self, timeout_s: float) -> None:
        """The next answer. Raises TrackingFailure when it is an error, or does not come."""
        assert self._process is not None
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise TrackingFailure(f"no answer in {timeout_s:g} s, see tracking.timeout_s")
        line = self._process.stdout.readline()  # answers are short and written at once
        if not line:
            raise TrackingFailure("its process ended unexpectedly")
        answer = json.loads(line)
        if "error" in answer:
            raise TrackingFailure(answer["error"])

    def _kill(self) -> None:
        if self._process is not None:
            _kill(self._process)
            self._process, self._ready = None, False
        if self._asked is not None:
            drop_empty(self.folder, *self._asked)
            self._asked = None


def log_report(settings: WandbSettings, folder: Path) -> bool:
    """Logs the cells that W&B has not got and the report of ``folder``; returns whether it did. Never raises."""
    with Recorder(settings, folder) as recorder:
        return recorder.report()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its session at once."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
