"""How the process of the reference engine is started."""

from __future__ import annotations

import subprocess
import sys

IN_A_WORKER_OF_JOBLIB = """
import multiprocessing, sys
from joblib.externals.loky.backend import context
multiprocessing.set_start_method("loky", force=True)
from runners.links import spawn_context
process = spawn_context().Process(target=print, args=("started",))
process.start()
process.join()
sys.exit(process.exitcode)
"""


def test_a_worker_of_joblib_starts_the_engine() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_WORKER_OF_JOBLIB], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
