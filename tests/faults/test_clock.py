"""A wall clock that jumps, below Python: a library that is loaded before the C library shifts what the system says."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sweeps import CELLS, Sweeps, statuses

SHIM = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds to be added to the wall clock, read anew from a file each time. */
static long shift(void) {
    FILE *file = fopen(getenv("CLOCK_SHIFT"), "r");
    long seconds = 0;
    if (file) { if (fscanf(file, "%ld", &seconds) != 1) seconds = 0; fclose(file); }
    return seconds;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return status;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    int status = clock_gettime(CLOCK_REALTIME, &exact);
    if (now) { now->tv_sec = exact.tv_sec; now->tv_usec = exact.tv_nsec / 1000; }
    return status;
}
time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clock")
    (folder / "shim.c").write_text(SHIM)
    library = folder / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(folder / "shim.c")], check=True)
    return library


def test_the_clock_jumps_and_nothing_that_is_measured_does(sweeps: Sweeps, shim: Path, tmp_path: Path) -> None:
    shift = tmp_path / "shift"
    shift.write_text("86400")
    over = threading.Event()

    def jump() -> None:
        """Two days forward and back, several times a second; at the start it is tomorrow."""
        ahead = True
        while not over.wait(0.15):
            draft = tmp_path / "draft"
            draft.write_text("86400" if ahead else "-86400")
            draft.replace(shift)
            ahead = not ahead

    jumper = threading.Thread(target=jump)
    jumper.start()
    began = time.monotonic()
    try:
        done = sweeps.execute(
            "jumps", "faults.heartbeat_s=0.05", "faults.stale_s=0.5", LD_PRELOAD=str(shim), CLOCK_SHIFT=str(shift)
        )
    finally:
        over.set()
        jumper.join()
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cells"]["ok"] == CELLS
    assert sweeps.content("jumps") == sweeps.content("whole")
    folder = sweeps.path("jumps")
    started = [datetime.fromisoformat(status["started"]) for status in statuses(folder)]
    shifts = [abs((each - datetime.now(UTC)).total_seconds()) for each in started]
    assert min(shifts) > 80_000, "the clock was not shifted"
    for status in statuses(folder):
        assert 0 < status["seconds"] < took
    for path in (folder / "cells").glob("*/requests.parquet"):
        for row in pq.read_table(path).to_pylist():
            assert 0 <= row["start_s"] < took
            assert 0 < row["ttft_s"] <= row["latency_s"] < took
