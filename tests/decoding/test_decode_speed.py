"""The benchmark command: a table for people, and one JSON line last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "decode_speed.py"), "--threads", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False)


def test_untrained_pair() -> None:
    small = ["--requests", "2", "--new-tokens", "4", "--prompt-tokens", "8", "--repetitions", "2"]
    done = run("--untrained", "--batch-sizes", "1", "2", *small)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    report = json.loads(lines[-1])
    assert len(report["rows"]) == 10
    assert {row["strategy"] for row in report["rows"]} == {"autoregressive", "dflash", "eagle", "ddtree"}
    for row in report["rows"]:
        assert row["lossless_share"] == 1.0
        assert row["tokens_per_s_min"] <= row["tokens_per_s"] <= row["tokens_per_s_max"]
    assert sum(line.startswith("| ") for line in lines) == 11  # a heading and ten rows


def test_missing_target() -> None:
    done = run("--target", "/no/such/model")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip().startswith("error: target='/no/such/model'")
