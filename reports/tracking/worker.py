"""The process that talks to W&B: ``python -m reports.tracking.worker <folder> <settings as JSON>``.

A line of JSON comes in, ``{"cell": id}`` or ``{"report": true}``, the work is done, and a line goes out: ``{}``, or
``{"error": text}``. Between two requests it only waits. Whatever hangs in W&B hangs here, where it can be ended; the
end of standard input, which is also the parent's end, ends it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

import wandb

from reports.tracking.cell_run import Baselines, log_cell, started
from reports.tracking.ledger import Ledger
from reports.tracking.report_run import log_report_run, sweep_identity
from reports.tracking.settings import WandbSettings


class Worker:
    """Logs cells and the report of one run folder."""

    def __init__(self, folder: Path, settings: WandbSettings) -> None:
        self.folder, self.settings = folder, settings
        self.sweep = sweep_identity()
        self.ledger = Ledger(folder, settings)
        self.baselines = Baselines(folder)

    def do(self, request: dict[str, Any]) -> None:
        if "report" in request:
            if self.sweep:
                wandb.teardown()  # W&B reads the environment once, when it is first used
                os.environ.update(self.sweep)
            log_report_run(self.settings, self.folder, self.sweep.get("WANDB_RUN_ID"))
            return
        cell_id = request["cell"]
        when = started(self.folder, cell_id)
        if not self.ledger.has(cell_id, when):
            log_cell(self.settings, self.folder, cell_id, self.baselines)
            self.ledger.add(cell_id, when)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what W&B prints is no answer
    requests: queue.Queue[str | None] = queue.Queue()
    busy = threading.Event()
    threading.Thread(target=_read, args=(requests, busy), daemon=True).start()
    try:
        folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
        worker = Worker(folder, WandbSettings(**{**settings, "tags": tuple(settings["tags"])}))
    except Exception as error:  # noqa: BLE001  the parent must hear of it
        _answer(answers, error)
        return
    _answer(answers, None)
    while (line := requests.get()) is not None:
        failure: Exception | None = None
        try:
            worker.do(json.loads(line))
        except Exception as error:  # noqa: BLE001  a tracker's fault is no fault of the run's
            failure = error
        busy.clear()
        _answer(answers, failure)
    wandb.teardown()
    os._exit(0)  # all is written: taking down an interpreter with pandas in it would cost a second


def _read(requests: queue.Queue[str | None], busy: threading.Event) -> None:
    for line in sys.stdin:
        busy.set()
        requests.put(line)
    if busy.is_set():
        os._exit(1)  # nobody waits for what is being logged any more
    requests.put(None)


def _answer(stream: TextIO, error: Exception | None) -> None:
    text = {} if error is None else {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    stream.write(json.dumps(text) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
