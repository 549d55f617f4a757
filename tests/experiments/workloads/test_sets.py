"""The papers' sets through the `datasets` library, from folders shaped like their repositories."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import made_sets
import numpy as np
import pytest

from experiments.workloads import prompts_hash

MATH = "\nPlease reason step by step, and put your final answer within \\boxed{}."
CODER = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
    "for the program\n\n### Question:\nAdd two numbers.\n\n"
)
ALL = "workload.max_prompts=null"
FOOTER = "\n\n### Answer: (use the provided format with backticks)"
PLAIN = CODER + "### Format: Write your code in the following format:\n```python\n# YOUR CODE HERE\n```" + FOOTER
CODED = CODER + "### Format: Use the following code structure:\n```python\nclass Solution:\n```" + FOOTER

# By set: the first prompts as (id, category, turns).
EXPECTED: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "gsm8k": [("gsm8k/0", "gsm8k", (f"How many apples are 0 apples?{MATH}",))],
    "math500": [
        ("test/a.json", "Algebra", (f"What is $1+1$?{MATH}",)),
        ("test/b.json", "Number Theory", (f"Is $7$ prime?{MATH}",)),
    ],
    "humaneval": [
        (
            "HumanEval/0",
            "humaneval",
            (
                "Write a solution to the following problem and make sure that it passes the tests:\n"
                "```python\ndef one():\n\n```",
            ),
        )
    ],
    "mbpp": [("2", "mbpp", ("Write a function to add.",))],
    "livecodebench": [("abc1", "easy", (PLAIN,)), ("10", "hard", (CODED,))],
    "mt_bench": [("81", "writing", ("Write.", "Write again.")), ("111", "math", ("Add.", "Subtract."))],
    "alpaca": [
        ("alpaca/0", "alpaca", ("Give three tips.",)),
        ("alpaca/1", "alpaca", ("Translate.\n\nInput:\nHallo",)),
    ],
}


def of_folder(name: str, folder: Path) -> list[str]:
    return [f"workload={name}", f"workload.dataset={made_sets.MADE[name](folder)}", "workload.revision=null", ALL]


@pytest.mark.parametrize("name", EXPECTED)
def test_prompts_are_those_of_the_papers(name: str, tmp_path: Path, loaded: Any) -> None:
    workload = loaded(*of_folder(name, tmp_path / "set"))
    found = [(p.id, p.category, p.turns) for p in workload.prompts]
    assert found[: len(EXPECTED[name])] == EXPECTED[name]
    assert {p.dataset for p in workload.prompts} == {name}
    assert workload.origin["prompts"] == len(found)
    assert workload.origin["source"] == [str(tmp_path / "set")]
    assert workload.origin["licence"]


def test_all_files_of_a_set_are_read(tmp_path: Path, loaded: Any) -> None:
    assert len(loaded(*of_folder("livecodebench", tmp_path)).prompts) == 6


def test_two_sets_in_one_workload(tmp_path: Path, loaded: Any) -> None:
    """The years have other columns, and are told apart by category."""
    made_sets.aime(tmp_path, "aime_2024", id=60, year="2024", url="u")
    made_sets.aime(tmp_path, "aime_2025", problem_idx=1)
    folders = f"workload.dataset=[{tmp_path / 'aime_2024'},{tmp_path / 'aime_2025'}]"
    workload = loaded("workload=aime", folders, "workload.revision=null")
    assert [(p.id, p.category) for p in workload.prompts] == [
        ("aime_2024/0", "aime_2024"),
        ("aime_2024/1", "aime_2024"),
        ("aime_2025/0", "aime_2025"),
        ("aime_2025/1", "aime_2025"),
    ]
    assert workload.prompts[2].turns == (f"aime_2025 problem 0{MATH}",)
    one = loaded("workload=aime", folders, "workload.revision=null", "workload.categories=[aime_2025]")
    assert {p.category for p in one.prompts} == {"aime_2025"}


def test_the_papers_choice_of_rows(tmp_path: Path, loaded: Any) -> None:
    """128 rows after a shuffle with seed 0, which is numpy's permutation; ids are numbers of the rows as they were."""
    folder = made_sets.gsm8k(tmp_path / "set", 200)
    prompts = loaded("workload=gsm8k", f"workload.dataset={folder}", "workload.revision=null", ALL).prompts
    expected = np.random.default_rng(0).permutation(200)[:128]
    assert [p.id for p in prompts] == [f"gsm8k/{number}" for number in expected]
    assert prompts[0].turns == (f"How many apples are {expected[0]} apples?{MATH}",)
    few = loaded("workload=gsm8k", f"workload.dataset={folder}", "workload.revision=null", "workload.max_prompts=5")
    assert few.prompts == prompts[:5]


def test_as_few_rows_as_the_papers_take_are_not_shuffled(tmp_path: Path, loaded: Any) -> None:
    folder = made_sets.gsm8k(tmp_path / "set", 128)
    prompts = loaded("workload=gsm8k", f"workload.dataset={folder}", "workload.revision=null", ALL).prompts
    assert [p.id for p in prompts] == [f"gsm8k/{number}" for number in range(128)]


def test_a_folder_that_changes_is_read_again(tmp_path: Path, loaded: Any) -> None:
    """`datasets` itself finds the rows of an earlier folder of the same name in its cache."""
    sizes = []
    for index, count in enumerate((5, 9)):
        folder = made_sets.gsm8k(tmp_path / str(index) / "set", count)
        sizes.append(len(loaded("workload=gsm8k", f"workload.dataset={folder}", "workload.revision=null").prompts))
    assert sizes == [5, 9]


def test_prompts_are_spread_over_the_categories(tmp_path: Path, loaded: Any) -> None:
    workload = loaded(*of_folder("livecodebench", tmp_path), "workload.max_prompts=2")
    assert [p.category for p in workload.prompts] == ["easy", "hard"]


def test_first_turns_only(tmp_path: Path, loaded: Any) -> None:
    both = loaded(*of_folder("mt_bench", tmp_path / "a"))
    first = loaded(*of_folder("mt_bench", tmp_path / "b"), "workload.turns=first")
    assert [p.turns for p in first.prompts] == [("Write.",), ("Add.",)]
    assert (both.origin["turns"], first.origin["turns"]) == (4, 2)
    assert prompts_hash(both.prompts) != prompts_hash(first.prompts)


def test_placeholders_are_refused(tmp_path: Path, loaded: Any, refused: Any) -> None:
    line = refused(*of_folder("speed_bench", tmp_path / "set"))
    assert "workload.dataset=" in line
    assert "1 of 2 hold a placeholder" in line
    assert "workload.path=<file>" in line
    whole = loaded(*of_folder("speed_bench", tmp_path / "again"), "workload.categories=[coding]")
    assert [p.turns for p in whole.prompts] == [("Sort a list.",)]


def test_a_prepared_file_takes_the_place_of_the_download(tmp_path: Path, loaded: Any) -> None:
    """As SPEED-Bench's own scripts write it: Parquet with turns, or JSON lines with messages."""
    row = {"question_id": "q1", "category": "qa", "turns": ["What is up?", "And down?"]}
    made_sets.parquet(tmp_path, "test.parquet", [row])
    workload = loaded("workload=speed_bench", f"workload.path={tmp_path / 'test.parquet'}")
    assert [(p.id, p.category, p.turns) for p in workload.prompts] == [("q1", "qa", ("What is up?", "And down?"))]
    assert re.fullmatch("sha256:[0-9a-f]{16}", workload.origin["revision"])
    said = [{"role": "user", "content": text} for text in row["turns"]]
    made_sets.json_lines(tmp_path, "test.jsonl", [{"question_id": "q1", "category": "qa", "messages": said}])
    other = loaded("workload=speed_bench", f"workload.path={tmp_path / 'test.jsonl'}", "workload.rows.turns=messages")
    assert other.prompts == workload.prompts


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["workload.split=nope"], ["workload.dataset=", "split nope"]),
        (["workload.config=nope"], ["workload.dataset=", "config nope"]),
        (["workload.files=[nope.jsonl]"], ["workload.files='nope.jsonl'", "a file of"]),
        (["workload.rows.template='{qestion}'"], ["workload.rows.template='{qestion}'", "question, answer"]),
        (
            ["workload.dataset=no folder"],
            ["workload.dataset='no folder'", "a folder with a dataset"],
        ),
        (["workload.categories=[nope]"], ["workload.categories='nope'", "one of gsm8k"]),
    ],
)
def test_what_is_not_there(overrides: list[str], words: list[str], tmp_path: Path, refused: Any) -> None:
    line = refused(*of_folder("gsm8k", tmp_path / "set"), *overrides)
    for word in words:
        assert word in line


def test_without_the_library(tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'ddbench[datasets]'" in refused(*of_folder("gsm8k", tmp_path / "set"))
