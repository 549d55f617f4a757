"""Conversations of several turns on the reference engine: all arms see the same contexts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ddbench.errors import ConfigError
from experiments.contexts import ContextFile, Talk, missing, requests
from runners.base import Prompt

GRID = (
    "sweep.width=[2]",
    "sweep.depth=[4]",
    "sweep.nodes=[4]",
    "sweep.batch_size=[1,2]",
    "sweep.temperature=[0.0,1.0]",
    "workload.max_prompts=null",
)
TALKS = {"two": ["def f(x):", "and g?"], "three": ["class A:", "more", "and more"], "one": ["import os"]}
WANTED = {("two", 0), ("two", 1), ("three", 0), ("three", 1), ("three", 2), ("one", 0)}


@pytest.fixture(scope="module")
def ran(make_command_line: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """A command line whose prompts have several turns, and the summary of a run with it."""
    line = make_command_line()
    records = [{"id": name, "dataset": "d", "category": "c", "turns": turns} for name, turns in TALKS.items()]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (line.folder / "prompts.jsonl").write_text(text, encoding="utf-8")
    done = line.run(*GRID, "run_id=talk")
    assert done.code == 0, done.err
    assert "recording the answers to turn 1 of 2 conversations" in done.err
    assert "recording the answers to turn 2 of 1 conversations" in done.err
    return line, done.summary


def cells(run: Path) -> dict[str, tuple[dict[str, Any], pd.DataFrame]]:
    import yaml

    return {
        folder.name: (yaml.safe_load((folder / "cell.yaml").read_text()), pd.read_parquet(folder / "requests.parquet"))
        for folder in (run / "cells").iterdir()
    }


def stored(run: Path) -> tuple[Path, dict[str, Any]]:
    (path,) = (run / "contexts").iterdir()
    return path, json.loads(path.read_text())


def test_every_turn_is_a_request_of_every_arm(ran: tuple[Any, dict[str, Any]]) -> None:
    found = cells(Path(ran[1]["run"]))
    assert {(c["arm"]["strategy"], c["batch_size"], c["temperature"]) for c, _ in found.values()} == {
        (strategy, batch, temperature)
        for strategy in ("autoregressive", "dflash", "eagle", "ddtree")
        for batch in (1, 2)
        for temperature in (0.0, 1.0)
    }
    for cell, rows in found.values():
        assert set(zip(rows.prompt_id, rows.turn, strict=True)) == WANTED
        assert cell["prompts"] == len(rows) == 6


def test_all_arms_see_the_same_contexts(ran: tuple[Any, dict[str, Any]]) -> None:
    """Prompts are bytes here: as long as turns and recorded answers, and the empty line before a further turn."""
    run = Path(ran[1]["run"])
    answers = {(row["prompt_id"], row["turn"]): row["text"] for row in stored(run)[1]["answers"]}
    assert set(answers) == {("two", 0), ("three", 0), ("three", 1)}
    expected = {
        (name, turn): sum(len((turns[k] + answers[name, k] + "\n\n").encode()) for k in range(turn)) + len(turns[turn])
        for name, turns in TALKS.items()
        for turn in range(len(turns))
    }
    for _, rows in cells(run).values():
        assert {(p, t): n for p, t, n in zip(rows.prompt_id, rows.turn, rows.prompt_tokens, strict=True)} == expected
    hashes = {cell["prompts_hash"] for cell, _ in cells(run).values()}
    assert len(hashes) == 1


def test_greedy_arms_answer_alike(ran: tuple[Any, dict[str, Any]]) -> None:
    outputs = [
        {(p, t): tuple(ids) for p, t, ids in zip(rows.prompt_id, rows.turn, rows.output_token_ids, strict=True)}
        for cell, rows in cells(Path(ran[1]["run"])).values()
        if cell["temperature"] == 0
    ]
    assert len(outputs) == 8
    assert all(each == outputs[0] for each in outputs)


def test_what_a_run_stores_of_them(ran: tuple[Any, dict[str, Any]]) -> None:
    run = Path(ran[1]["run"])
    path, data = stored(run)
    assert data["recorded_by"]["strategy"] == "autoregressive"
    assert data["needs"]["template"] == "raw"
    origin = json.loads((run / "environment.json").read_text())["workload"]
    assert (origin["prompts"], origin["turns"], origin["contexts"]) == (3, 6, path.name)
    assert json.loads((run / "environment.json").read_text())["prompt_tokens"]["max"] > 20


def test_a_run_that_goes_on_takes_up_what_is_recorded(ran: tuple[Any, dict[str, Any]]) -> None:
    """Half of the answers and one cell are gone: only these are made again, and they are what they were."""
    import shutil

    line, summary = ran
    run = Path(summary["run"])
    path, data = stored(run)
    before = cells(run)
    path.write_text(json.dumps({**data, "answers": data["answers"][:2]}))
    shutil.rmtree(run / "cells" / min(before))
    again = line.run(*GRID, "run_id=talk")
    assert again.code == 0, again.err
    assert "turn 1 of" not in again.err
    assert "recording the answers to turn 2 of 1 conversations" in again.err
    assert stored(run)[1]["answers"] == data["answers"]
    assert set(cells(run)) == set(before)
    assert f"{len(before) - 1} of {len(before)} cells are done already" in again.err
    dry = line.run(*GRID, "run_id=talk", "dry_run=true")
    assert dry.out.count("(done)") == len(before)


def test_contexts_without_an_autoregressive_arm_and_from_another_run(ran: tuple[Any, dict[str, Any]]) -> None:
    line, summary = ran
    few = (*GRID, "run_id=own", "sweep.strategy=[dflash]", "sweep.temperature=[0.0]")
    own = line.run(*few)
    assert own.code == 0, own.err
    assert "recording" in own.err
    made = cells(Path(own.summary["run"]))
    assert len(made) == 2
    assert set(made) < set(cells(Path(summary["run"])))
    path, _ = stored(Path(summary["run"]))
    stored(Path(own.summary["run"]))[0].unlink()
    given = line.run(*few, f"workload.contexts={path}", "dry_run=true")
    assert given.out.count("(done)") == 2, given.err


def test_given_contexts_are_kept_in_the_run(tmp_path: Path) -> None:
    prompt = Prompt("p", "d", "c", ("a", "b"))
    one, other = (ContextFile(tmp_path / name / "key.json", {"seed": 0}, (prompt,)) for name in ("one", "other"))
    one.write({("p", 0): "x"}, "a test")
    talk = Talk((prompt,), other.given(str(one.path)), other)
    talk.keep()
    assert other.read() == {("p", 0): "x"}
    with pytest.raises(ConfigError, match="whole"):
        ContextFile(tmp_path / "k.json", {"seed": 0}, (replace(prompt, id="q"),)).given(str(one.path))


def test_contexts_of_something_else(ran: tuple[Any, dict[str, Any]]) -> None:
    line, summary = ran
    path, _ = stored(Path(summary["run"]))
    for overrides, word in (
        (["seed=1"], "contexts of the same seed"),
        (["load.max_new_tokens=5"], "max_new_tokens"),
        ([f"workload.contexts={line.folder / 'prompts.jsonl'}"], "a file contexts/<key>.json"),
    ):
        done = line.run(*GRID, f"workload.contexts={path}", "run_id=other", *overrides)
        assert done.code == 2
        assert len(done.errors) == 1
        assert "workload.contexts" in done.err
        assert word in done.err
    assert not line.path("other").exists()


def test_requests_and_what_is_missing() -> None:
    talk = Prompt("p", "d", "c", ("a", "b", "c"))
    assert missing([talk], {("p", 0): "x"})
    first, second, third = requests([talk], {("p", 0): "x", ("p", 1): "y"})
    assert not missing([talk], {("p", 0): "x", ("p", 1): ""})
    assert (first.turns, first.answers, first.turn) == (("a",), (), 0)
    assert (second.turns, second.answers, second.turn) == (("a", "b"), ("x",), 1)
    assert [(m["role"], m["content"]) for m in third.messages] == [
        ("user", "a"),
        ("assistant", "x"),
        ("user", "b"),
        ("assistant", "y"),
        ("user", "c"),
    ]
