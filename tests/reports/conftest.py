"""One small synthetic run for the tests that only read it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import synthetic

SMALL = synthetic.Plan(
    shapes={
        "autoregressive": [(None, None, None)],
        "dflash": [(None, 3, None), (None, 7, None)],
        "eagle": [(2, 4, 8), (4, 4, 16)],
        "ddtree": [(w, d, n) for w in (2, None) for d in (3, 7) for n in (8, 16)],
    },
    batch_sizes=(1, 4),
    prompts=8,
)


@pytest.fixture(scope="session")
def small_plan() -> synthetic.Plan:
    return SMALL


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("outputs") / "synthetic" / "run"
    synthetic.write_run(run, SMALL)
    return run
