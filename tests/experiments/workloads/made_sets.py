"""Folders shaped like the repositories of the papers' datasets, with their column names and a few rows of our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Rows = list[dict[str, Any]]
MARK = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


def parquet(folder: Path, name: str, rows: Rows, card: str | None = None) -> Path:
    """A Parquet file of a repository; ``card``: the front matter of its README, where it has configs."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    if card is not None:
        (folder / "README.md").write_text(f"---\n{card}---\n", encoding="utf-8")
    return folder


def json_lines(folder: Path, name: str, rows: Rows) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def config_card(config: str, split: str, files: str) -> str:
    return f"configs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n    path: {files}\n"


def gsm8k(folder: Path, count: int = 3) -> Path:
    rows = [{"question": f"How many apples are {n} apples?", "answer": f"#### {n}"} for n in range(count)]
    return parquet(folder, "main/test-00000-of-00001.parquet", rows, config_card("main", "test", "main/test-*"))


def math500(folder: Path) -> Path:
    row = {"problem": "What is $1+1$?", "solution": "It is 2.", "answer": "2", "subject": "Algebra", "level": 1}
    other = {**row, "problem": "Is $7$ prime?", "subject": "Number Theory", "unique_id": "test/b.json"}
    return json_lines(folder, "test.jsonl", [{**row, "unique_id": "test/a.json"}, other])


def aime(folder: Path, name: str, **columns: Any) -> Path:
    rows = [{"problem": f"{name} problem {n}", "answer": str(n), **columns} for n in range(2)]
    return parquet(folder / name, "data/train-00000-of-00001.parquet", rows)


def humaneval(folder: Path) -> Path:
    row = {"task_id": "HumanEval/0", "prompt": "def one():\n", "canonical_solution": "    return 1\n"}
    rows = [{**row, "test": "def check(f): ...", "entry_point": "one"}]
    card = config_card("openai_humaneval", "test", "openai_humaneval/test-*")
    return parquet(folder, "openai_humaneval/test-00000-of-00001.parquet", rows, card)


def mbpp(folder: Path) -> Path:
    row = {"source_file": "f.ipynb", "task_id": 2, "prompt": "Write a function to add.", "code": "def add(): ..."}
    rows = [{**row, "test_imports": [""], "test_list": ["assert add()"]}]
    whole = config_card("full", "test", "full/test-*")
    parquet(folder, "full/test-00000-of-00001.parquet", [{"task_id": 9, "text": "not this one"}])
    card = whole + config_card("sanitized", "test", "sanitized/test-*").removeprefix("configs:\n")
    return parquet(folder, "sanitized/test-00000-of-00001.parquet", rows, card)


def livecodebench(folder: Path) -> Path:
    row = {"question_title": "T", "question_content": "Add two numbers.", "platform": "atcoder", "difficulty": "easy"}
    plain = {**row, "question_id": "abc1", "starter_code": "", "private_test_cases": "x" * 1000}
    coded = {
        **row,
        "question_id": "10",
        "starter_code": "class Solution:",
        "difficulty": "hard",
        "private_test_cases": "",
    }
    for number in range(1, 7):
        name = f"test{number if number > 1 else ''}.jsonl"
        json_lines(folder, name, {1: [plain], 2: [coded]}.get(number, [{**plain, "question_id": f"n{number}"}]))
    return folder


def mt_bench(folder: Path) -> Path:
    rows = [
        {"category": "writing", "prompt": ["Write.", "Write again."], "prompt_id": 81, "reference": []},
        {"category": "math", "prompt": ["Add.", "Subtract."], "prompt_id": 111, "reference": ["1", "2"]},
    ]
    return parquet(folder, "data/train-00000-of-00001.parquet", rows)


def alpaca(folder: Path) -> Path:
    rows = [
        {"instruction": "Give three tips.", "input": "", "output": "o", "text": "t"},
        {"instruction": "Translate.", "input": "Hallo", "output": "o", "text": "t"},
    ]
    return parquet(folder, "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet", rows)


def speed_bench(folder: Path) -> Path:
    row = {
        "category": "coding",
        "sub_category": "python",
        "turns": ["Sort a list."],
        "source": "s",
        "question_id": "q0",
    }
    rows = [row, {**row, "question_id": "q1", "category": "qa", "turns": [MARK, MARK]}]
    card = config_card("qualitative", "test", "qualitative/test-*")
    return parquet(folder, "qualitative/test-00000-of-00001.parquet", rows, card)


MADE: dict[str, Callable[[Path], Path]] = {
    "gsm8k": gsm8k,
    "math500": math500,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "livecodebench": livecodebench,
    "mt_bench": mt_bench,
    "alpaca": alpaca,
    "speed_bench": speed_bench,
}
