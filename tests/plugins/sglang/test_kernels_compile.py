"""Every kernel compiles for the GPUs we name, within the shared memory of a block there. Needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed; the environment of vLLM has it")

PROGRAM = Path(__file__).parent / "sgl_compile.py"
KERNELS = {
    "fill_block",
    "build",
    "lay_out",
    "pack",
    "follow",
    "weigh",
    "gather_hidden",
    "move_cache",
    "choose",
    "attend",
    "merge",
}


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "shared"), [(90, 232_448), (120, 101_376)])
def test_compiles_within_shared_memory(capability: int, shared: int, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), str(capability)], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    assert {name.split()[0] for name in found} == KERNELS
    assert all(used <= shared for used in found.values()), found
