"""Runs that were gone on with: what another start found, and which start measured what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from synthetic import arm, cell, write_cell, write_run
from test_launch import PLAN, settings
from test_page import page, rows, section

from reports.aggregate import analyse
from reports.frames import read_run, records
from reports.sections import launch
from reports.starts import changes, start_of, starts

FIRST = {
    "command": "python -m ddbench experiment=smoke load.max_new_tokens=48",
    "started": "2026-01-01T00:00:00+00:00",
    "git_commit": "a" * 40,
    "git_dirty": False,
    "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
}
SECOND = {
    **FIRST,
    "command": "python -m ddbench experiment=smoke load.max_new_tokens=32",
    "started": "2026-01-02T00:00:00+00:00",
    "git_dirty": True,
    "packages": {"torch": "2.14.0", "numpy": "2.4.6"},
}


def run_of(folder: Path, *environments: dict[str, Any]) -> Path:
    """A chain that the first start measured with a limit of 48, and autoregressive decoding of the last, with 32."""
    run = folder / "smoke" / "run"
    write_run(run, PLAN)
    for number, environment in enumerate(environments[:-1], 1):
        (run / f"environment-{number}.json").write_text(json.dumps(environment))
    (run / "environment.json").write_text(json.dumps(environments[-1]))
    (run / "config.yaml").write_text(yaml.safe_dump({"load": {"max_new_tokens": 32, "blocks": 1}, "name": "smoke"}))
    for system, limit, day in (
        (arm("dflash", None, 3, None), 48, "01"),
        (arm("autoregressive", None, None, None), 32, "02"),
    ):
        plan = replace(PLAN, max_new_tokens=limit)
        each = cell(plan, system, 4)
        write_cell(run, plan, each)
        status = run / "cells" / each.cell_id / "status.json"
        begun = f"2026-01-{day}T00:10:00+00:00"
        status.write_text(json.dumps({**json.loads(status.read_text()), "started": begun}))
    return run


def chain(run: Path) -> dict[str, Any]:
    return next(row for row in records(analyse(read_run(run)).frame) if row["strategy"] == "dflash")


def test_what_differs_between_two_starts_is_said_first(tmp_path: Path) -> None:
    text = page(run_of(tmp_path, FIRST, SECOND))
    (banner,) = [line for line in section(text, "Before you believe it").splitlines() if "started 2 times" in line]
    assert "`git_dirty` False then True; `packages.torch` 2.13.0 then 2.14.0" in banner
    assert "numpy" not in banner
    table = rows(section(text, "Provenance").split("was started several times")[1].split("What differs")[0])
    assert [row[:3] for row in table] == [["1", FIRST["started"], "1"], ["2", SECOND["started"], "1"]]
    assert "max_new_tokens=48" in table[0][4]


def test_two_like_starts_are_no_doubt(tmp_path: Path) -> None:
    run = run_of(tmp_path, FIRST, {**FIRST, "started": SECOND["started"]})
    assert changes(starts(read_run(run))) == {}
    assert "was started 2 times" not in page(run)


def test_starts_without_a_time_are_listed_and_not_guessed(tmp_path: Path) -> None:
    bare = {name: value for name, value in FIRST.items() if name != "started"}
    run = run_of(tmp_path, bare, SECOND)
    assert start_of(starts(read_run(run)), "2026-01-02T00:10:00+00:00") is None
    table = rows(section(page(run), "Provenance").split("was started several times")[1].split("What differs")[0])
    assert [row[2] for row in table] == ["–", "–"]


def test_the_tenth_start_comes_after_the_second(tmp_path: Path) -> None:
    every = [{**FIRST, "started": f"2026-01-{day:02}T00:00:00+00:00"} for day in range(1, 12)]
    found = starts(read_run(run_of(tmp_path, *every)))
    assert [start.environment["started"] for start in found] == [each["started"] for each in every]


def test_the_command_is_of_the_start_that_measured_the_arm(tmp_path: Path) -> None:
    run = run_of(tmp_path, FIRST, SECOND)
    comment, line = launch.lines(read_run(run), chain(run))
    assert comment.startswith("# An earlier start of the run measured this arm")
    assert settings(line).load.max_new_tokens == 48
    assert line.count("max_new_tokens") == 1


def test_where_the_start_is_not_known_the_arm_s_settings_are_added(tmp_path: Path) -> None:
    bare = {name: value for name, value in SECOND.items() if name != "started"}
    run = run_of(tmp_path, FIRST, bare)
    *comments, line = launch.lines(read_run(run), chain(run))
    assert settings(line).load.max_new_tokens == 48
    assert "load.max_new_tokens" in comments[-1]
    assert all(comment.startswith("# ") for comment in comments)


def test_other_prompts_of_the_same_set_are_in_the_command(tmp_path: Path) -> None:
    run = run_of(tmp_path, FIRST)
    config = {"load": {"max_new_tokens": 48, "blocks": 1}, "workload": {"name": "synthetic", "max_prompts": 1}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    line = launch.lines(read_run(run), chain(run))[-1]
    assert settings(line).workload.max_prompts == PLAN.prompts
