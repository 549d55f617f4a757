"""What a command loads before it does anything: torch takes seconds, and the engine's own process has it."""

from __future__ import annotations

import subprocess
import sys


def test_a_sweep_is_planned_without_torch() -> None:
    program = "import sys, ddbench.__main__, experiments.sweep, experiments.report; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "False\n", done.stdout + done.stderr
