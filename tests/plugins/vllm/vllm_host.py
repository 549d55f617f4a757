"""Imports vLLM once, then forks a child for each job whose folder it reads from standard input (see `vllm_jobs`).

    python vllm_host.py FOLDER

A line on standard output for each job: the child's exit status.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path


def serve(folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever vLLM prints is no answer
    import vllm_engine

    for line in sys.stdin:
        job = folder / line.strip()
        child = os.fork()
        if child == 0:
            os._exit(run(vllm_engine, job))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def run(engine: object, job: Path) -> int:
    log = os.open(job / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        engine.run_job(job)  # type: ignore[attr-defined]
    except BaseException:  # noqa: BLE001 - the child's last words, whatever ended it
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
