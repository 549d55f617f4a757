"""The benchmark of the verify pass's attention: what it tries, how it judges, and what it says where it cannot run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.attention_grid import (
    Device,
    Point,
    copies_of,
    evidence_of,
    judged,
    name_of,
    points,
    rule,
    shapes,
    table,
    to_compile,
    tried,
)
from ddbench.plugins.sglang.kernels.attention_plan import Plan

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence"
H200 = Device(132, 227 * 1024, 50 * 2**20)
PRO_6000 = Device(188, 99 * 1024, 128 * 2**20)
ALL = points([16, 32, 64, 128], [1, 2, 4, 8, 16, 32, 64], [256, 1024])


@pytest.mark.parametrize("device", [H200, PRO_6000])
def test_the_rule_is_tried_first_and_all_that_is_tried_fits(device: Device) -> None:
    for point in ALL:
        plans = tried(point, device)
        assert plans[0] == rule(point, device)
        assert len(plans) == len({name_of(each) for each in plans})
        assert all(each.tile.bytes(128, 2) <= device.shared for each in plans)


def test_the_whole_grid_stays_small_enough_for_one_call() -> None:
    assert len(to_compile(ALL, H200)) <= 130
    assert sum(len(tried(point, H200)) for point in ALL) <= 1100


def test_contexts_of_all_launches_are_twice_the_cache() -> None:
    for point in ALL:
        copies = copies_of(point, H200)
        assert 8 <= copies <= 128
        assert copies * point.batch * point.context * 8 * 128 * 2 * 2 >= 2 * H200.l2


def test_judges_shapes_by_their_ratio_to_the_chain() -> None:
    asked = points([64], [1, 4, 32], [256])
    winner = shapes(64, H200.shared)[-1]
    rows = []
    for point in asked:
        us = {name_of(each): 40.0 + each.splits for each in tried(point, H200)}
        alone = Plan(winner, 1)
        us[name_of(alone)] = 10.0
        planned = name_of(rule(point, H200))
        row = {"width": 64, "batch": point.batch, "context": 256, "chain_us": 20.0, "masked_us": 30.0, "us": us}
        rows.append(row | {"rule": planned, "rule_us": us[planned]})
    verdicts = list(judged(rows, H200))
    assert verdicts[0]["fill"] == 0
    assert name_of(Plan(winner, 1)).startswith(verdicts[0]["shape"])
    assert verdicts[0]["mean"] == pytest.approx(0.5)
    assert [each["mean"] for each in verdicts] == sorted(each["mean"] for each in verdicts)
    lines = list(table(rows, verdicts))
    assert len(lines) == 1 + 3 + 3
    assert name_of(Plan(winner, 1)) in lines[1]


def test_a_run_becomes_a_file_of_evidence() -> None:
    """Of the last line that it prints; the committed files have the same fields, and the newer one the same rows."""
    line = {"benchmark": "verify_attention", "gpu": "H", "torch": "2", "triton": "3", "sglang": "0.5.17"}
    line |= {"verdicts": [1], "rows": [2], "skipped": [], "compile_s": 3.0}
    made = evidence_of(line, "python x", "2026-11-30", "580", "3.12")
    assert made["measured"] == {"verdicts": [1], "rows": [2], "skipped": [], "compile_s": 3.0}
    assert made["versions"] == {"python": "3.12", "torch": "2", "triton": "3", "sglang": "0.5.17"}
    for name in ("sglang_attention", "sglang_attention_spot"):
        kept = json.loads((EVIDENCE / f"{name}.json").read_text())
        assert list(kept) == list(made)
        assert [list(kept[field]) for field in ("versions", "measured")] == [
            list(made["versions"]),
            list(made["measured"]),
        ]
    plans = {name for row in kept["measured"]["rows"] for name in row["us"]}
    known = {name_of(each) for point in points([16, 64], [1, 3, 8], [256, 4096]) for each in tried(point, H200)}
    assert plans <= known


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what it needs where there is no GPU")
def test_one_line_where_it_cannot_run() -> None:
    program = Path(__file__).parents[3] / "benchmarks" / "verify_attention.py"
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: needs ")
    assert len(ran.stderr.splitlines()) == 1
    assert not ran.stdout


def test_points_come_width_by_width_within_a_context() -> None:
    assert points([64, 16], [1, 8], [256])[:3] == [Point(64, 1, 256), Point(64, 8, 256), Point(16, 1, 256)]
