from __future__ import annotations

from pathlib import Path

import pytest

from runners.engine_log import TAIL_BYTES, LogWatch, cause, read_part, read_tail

# An engine core that fails, and the server process that hears of it and says so last.
TWO_PROCESSES = """\
INFO 01-31 10:00:00 [loader.py:41] loading
(EngineCore pid=77) ERROR 01-31 10:00:01 [core.py:1136] EngineCore failed to start.
(EngineCore pid=77) ERROR 01-31 10:00:01 [core.py:1136] Traceback (most recent call last):
(EngineCore pid=77) ERROR 01-31 10:00:01 [core.py:1136]   File "worker.py", line 9, in load
(EngineCore pid=77) ERROR 01-31 10:00:01 [core.py:1136]     allocate()
(EngineCore pid=77) ERROR 01-31 10:00:01 [core.py:1136] torch.OutOfMemoryError: CUDA out of memory. Tried 20 GiB.
(EngineCore pid=77) Process EngineCore:
(APIServer pid=70) Traceback (most recent call last):
(APIServer pid=70)   File "api_server.py", line 5, in <module>
(APIServer pid=70) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: There appear to be 1 leaked semaphore objects
  warnings.warn('resource_tracker: There appear to be %d '
"""
DEATH_IN_SERVICE = """\
(EngineCore pid=7) ERROR 01-31 10:00:01 [core.py:1] AssertionError
(APIServer pid=1) ERROR 01-31 10:00:02 [async_llm.py:7] vllm.v1.engine.exceptions.EngineDeadError: EngineCore died. \
See stack trace above for the root cause.
(APIServer pid=1) INFO:     Shutting down
(APIServer pid=1) INFO:     Finished server process [1]
"""
CHAINED = """\
Traceback (most recent call last):
KeyError: 'block'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
\x1b[0;36m(Worker pid=5)\x1b[0;0m ValueError: no drafter for this target
asyncio.exceptions.CancelledError
"""
SCHEDULER = """\
[2026-01-31 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
RuntimeError: tree of 64 nodes does not fit
[2026-01-31 10:00:01] Received sigquit from a child process. It usually means the child failed.
"""
USAGE = "usage: server [-h] [--port PORT]\nserver: error: unrecognized arguments: --worker-clas x\n"
KILLED = (
    """\
(APIServer pid=1) ERROR 01-31 10:00:01 [serving.py:500] ValueError: Token id 99999 is out of vocabulary
"""
    + 30 * "INFO: 127.0.0.1:42552 - POST /v1/completions 200 OK\n"
    + """\
(EngineCore pid=7) ERROR 01-31 10:09:00 [executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)
(EngineCore pid=7) ERROR 01-31 10:09:01 [core.py:1512] RuntimeError: cancelled
(APIServer pid=1) ERROR 01-31 10:09:02 [serving.py:500] EngineDeadError: See stack trace (above) for the root cause.
"""
)
KILLED_ITSELF = """\
(Worker pid=9) ERROR 01-31 10:09:00 [multiproc_executor.py:1] torch.OutOfMemoryError: CUDA out of memory.
(EngineCore pid=7) ERROR 01-31 10:09:00 [executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)
"""
KILLED_AFTER_A_REFUSAL = """\
(APIServer pid=1) ERROR 01-31 10:00:01 [serving.py:500] vllm.exceptions.VLLMValidationError: Token id 99999 is unknown
(EngineCore pid=7) ERROR 01-31 10:09:00 [executor.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)
"""
ENDED = (
    """\
(EngineCore pid=7) ERROR 01-31 10:09:00 [core.py:1] ValueError: no block size
"""
    + 40 * "(APIServer pid=1) waiting\n"
    + """\
(EngineCore pid=7) ERROR 01-31 10:09:00 [executor.py:315] Worker proc Worker-0 died unexpectedly (exit code: None)
"""
)
ABORT = "loading\nterminate called after throwing an instance of 'c10::Error'\n  what():  bad\nShutting down\n"


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (TWO_PROCESSES, "torch.OutOfMemoryError: CUDA out of memory. Tried 20 GiB."),
        (DEATH_IN_SERVICE, "AssertionError"),
        (CHAINED, "ValueError: no drafter for this target"),
        (SCHEDULER, "RuntimeError: tree of 64 nodes does not fit"),
        (USAGE, "server: error: unrecognized arguments: --worker-clas x"),
        (KILLED, "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"),
        (KILLED_AFTER_A_REFUSAL, "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"),
        (ENDED, "ValueError: no block size"),
        (KILLED_ITSELF, "torch.OutOfMemoryError: CUDA out of memory."),
        (ABORT, "terminate called after throwing an instance of 'c10::Error'"),
        ("loading\nINFO:     Shutting down\n\n", "loading"),
        ("Traceback (most recent call last):\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        ("Errors: none\nall is well\n", "all is well"),
        ("", None),
        ("\n \n", None),
    ],
)
def test_the_cause_of_a_death(log: str, line: str | None) -> None:
    assert cause(log) == line


def test_a_long_cause_is_cut() -> None:
    assert len(cause("ValueError: " + "x" * 5000) or "") == 600


def test_a_watch_sees_each_line_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert LogWatch(log, "x").seen() == []
    log.write_text("compiling before\n", encoding="utf-8")
    watch = LogWatch(log, r"compil\w+")
    assert watch.seen() == []
    with log.open("a", encoding="utf-8") as stream:
        stream.write("compiling now\nserving\ncompi")
        stream.flush()
        assert watch.seen() == ["compiling now"]
        stream.write("ling again\n")
        stream.flush()
        assert watch.seen() == ["compiling again"]
    assert watch.seen() == []


def test_parts_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_part(log) == b""
    assert read_tail(log) == ""
    log.write_bytes(b"0123456789")
    assert read_part(log, 2, 5) == b"234"
    assert read_part(log, 7) == b"789"
    assert read_part(log, 7, 3) == b""
    assert read_part(log, 20) == b""
    assert read_tail(log, 4) == "456789"
    log.write_bytes(b"a" * (TAIL_BYTES + 10))
    assert len(read_tail(log)) == TAIL_BYTES
    assert len(read_tail(log, TAIL_BYTES)) == 10
