"""Without a network: one clear line in seconds, or the cached set at the very revision that is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import made_sets
import pytest

ROOT = Path(__file__).resolve().parents[3]
ARGUMENTS = ("experiment=smoke", "tracking=none", "dry_run=true", "workload=gsm8k")
UNREACHABLE = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # the port of no service


def run(folder: Path, environment: dict[str, str], *overrides: str) -> tuple[int, list[str], float]:
    """Exit status, lines on standard error, seconds."""
    dropped = ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE")
    own = {name: value for name, value in os.environ.items() if name not in dropped}
    own |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "home"), **environment}
    began = time.monotonic()
    command = [sys.executable, "-m", "ddbench", *ARGUMENTS, f"output_dir={folder / 'out'}", *overrides]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr.strip().splitlines(), time.monotonic() - began


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, UNREACHABLE])
def test_an_empty_cache(tmp_path: Path, environment: dict[str, str]) -> None:
    code, errors, seconds = run(tmp_path, environment)
    assert code == 2
    assert len(errors) == 1
    for word in ("workload.dataset='openai/gsm8k'", "workload.path=<file>", "workload=shipped"):
        assert word in errors[0]
    assert seconds < 30


def test_an_address_that_does_not_answer(tmp_path: Path) -> None:
    code, errors, seconds = run(tmp_path, {}, "workload=spec_bench", "workload.dataset=http://127.0.0.1:9/q.jsonl")
    assert code == 2
    assert len(errors) == 1
    assert "workload.dataset='http://127.0.0.1:9/q.jsonl'" in errors[0]
    assert seconds < 30


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, UNREACHABLE])
def test_a_cached_set_at_its_revision(tmp_path: Path, environment: dict[str, str]) -> None:
    """As the hub's client keeps it: another revision that lies there too is not taken for it."""
    pinned, other = "a" * 40, "b" * 40
    cache = tmp_path / "home" / "hub" / "datasets--openai--gsm8k"
    made_sets.gsm8k(cache / "snapshots" / pinned, 4)
    made_sets.gsm8k(cache / "snapshots" / other, 9)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(other)
    code = (
        "import json, sys; from experiments.workloads import load_workload; "
        "sys.path.insert(0, sys.argv[1]); from conftest import workload_settings; "
        "found = [load_workload(workload_settings('workload=gsm8k', f'workload.revision={r}')) for r in sys.argv[2:]]; "
        "print(json.dumps([[len(w.prompts), w.origin['revision']] for w in found]))"
    )
    own = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "home"), **environment}
    command = [sys.executable, "-c", code, str(Path(__file__).parent), pinned, "null"]
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[4, [pinned]], [9, [other]]]


def test_a_cached_set_at_another_revision(tmp_path: Path) -> None:
    made_sets.gsm8k(tmp_path / "home" / "hub" / "datasets--openai--gsm8k" / "snapshots" / ("a" * 40))
    code, errors, _ = run(tmp_path, {"HF_HUB_OFFLINE": "1"})
    assert code == 2
    assert "workload.dataset='openai/gsm8k'" in errors[0]
