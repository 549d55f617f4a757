"""Published acceptance lengths: shown where models, data and shape are those of a paper, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic import Plan, arm, cell, write_cell, write_run

from ddbench.acceptance import VARIANTS
from reports import build_report
from reports.aggregate import analyse
from reports.frames import read_run
from reports.published import TABLE, expected

FLAGS = {"device": "cuda", "dtype": "bfloat16", "template": "chat", "thinking": False, "ignore_eos": False}
MODEL = {"model": "qwen3_4b", "target": "Qwen/Qwen3-4B", "flags": FLAGS}
DFLASH, EAGLE = "z-lab/Qwen3-4B-DFlash-b16", "AngelSlim/Qwen3-4B_eagle3"
CONF = Path(__file__).resolve().parents[2] / "conf"


def row(strategy: str, width: int | None, depth: int | None, nodes: int | None, **changes: Any) -> dict[str, Any]:
    return {
        "strategy": strategy,
        "width": width,
        "depth": depth,
        "nodes": nodes,
        "min_log_prob": None,
        "target": "Qwen/Qwen3-4B",
        "drafter": EAGLE if strategy == "eagle" else DFLASH,
        "dataset": "math500",
        "temperature": 0.0,
        "flags": '{"template": "chat", "thinking": false, "ignore_eos": false}',
        **changes,
    }


def test_a_chain_is_expected_between_both_papers() -> None:
    found = expected(row("dflash", None, 15, None))
    assert found is not None
    assert (found.low, found.high) == (7.72, 7.84)
    assert found.bounds == pytest.approx((0.9 * 7.72, 1.1 * 7.84))
    assert found.sources == ("DDTree paper, Table 1", "DFlash paper, Table 1")
    assert [found.verdict(value) for value in (6.94, 6.95, 8.62, 8.63)] == [
        "outside, below",
        "inside",
        "inside",
        "outside, above",
    ]


def test_a_policy_is_not_held_against_a_fixed_tree() -> None:
    """It accepts less a round by design."""
    assert expected(row("ddtree", None, None, 64, policy="cost_optimal")) is None
    assert expected(row("ddtree", None, None, 64, policy=None)) is not None


def test_a_tree_is_expected_between_the_chain_and_the_best_tree() -> None:
    found = expected(row("ddtree", None, None, 64, temperature=1.0, dataset="gsm8k"))
    assert found is not None
    assert (found.low, found.high) == (5.99, 8.87)


def test_an_eagle_tree_has_the_published_shape() -> None:
    found = expected(row("eagle", 10, 7, 60))
    assert found is not None
    assert (found.low, found.high) == (3.52, 3.52)
    assert expected(row("eagle", 4, 7, 60)) is None


def test_a_workload_of_both_years_spans_both() -> None:
    found = expected(row("dflash", None, 15, None, dataset="aime"))
    assert found is not None
    assert (found.low, found.high) == (7.27, 7.54)


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 7},
        {"dataset": "my_prompts"},
        {"target": "Qwen/Qwen3-0.6B"},
        {"drafter": "another/drafter"},
        {"temperature": 0.5},
        {"flags": '{"template": "chat", "thinking": true}'},
        {"flags": '{"template": "raw", "thinking": false}'},
        {"flags": '{"template": "chat", "thinking": false, "ignore_eos": true}'},
    ],
)
def test_anything_else_matches_nothing(changes: dict[str, Any]) -> None:
    assert expected({**row("dflash", None, 15, None), **changes}) is None


def test_limited_and_small_trees_match_nothing() -> None:
    assert expected(row("ddtree", 4, None, 64)) is None
    assert expected(row("ddtree", None, None, 8)) is None
    assert expected(row("ddtree", None, None, 64, min_log_prob=-4.0)) is None


def test_the_models_are_those_of_conf() -> None:
    """A renamed checkpoint would silence the check: both files name the same."""
    for name, model in yaml.safe_load(TABLE.read_text())["models"].items():
        conf = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())
        assert conf["target"]["source"] == model["target"]
        assert conf["dflash"]["source"] == model["dflash"]
        assert model["eagle"] in (None, conf["eagle"]["source"])
        assert conf["thinking"] == model["thinking"]
        assert conf["template"] == "chat"


def test_the_page_shows_the_range(tmp_path: Path) -> None:
    run = tmp_path / "synthetic" / "run"
    plan = Plan(shapes={}, batch_sizes=(1,), prompts=4, model="qwen3_4b", workload="math500", max_new_tokens=64)
    write_run(run, plan)
    chain = arm("dflash", None, 15, None, **{**MODEL, "drafter": DFLASH})
    write_cell(run, plan, cell(plan, chain, 1))
    write_cell(run, plan, cell(plan, replace(chain, depth=3), 1))
    text = build_report(run, figures=False).report.read_text()
    section = text.split("## Against published acceptance lengths")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| dflash")]
    assert len(rows) == 1
    analysis = analyse(read_run(run))
    point = next(point for point in analysis.points if point.row["depth"] == 15)
    measured = next(variant for variant in VARIANTS if variant.name == "dflash_scripts").value(point.counts)
    assert measured is not None
    cells = [each.strip() for each in rows[0].split("|")[1:-1]]
    assert cells[2:5] == ["7.72 to 7.84", "6.95 to 8.62", f"{measured:.2f}"]
    assert cells[5] == ("outside, below" if measured < 6.948 else "outside, above" if measured > 8.624 else "inside")


def test_the_page_says_nothing_without_a_match(tmp_path: Path) -> None:
    run = tmp_path / "synthetic" / "run"
    write_run(run, Plan(shapes={"dflash": [(None, 15, None)]}, batch_sizes=(1,), prompts=2))
    assert "Against published" not in build_report(run, figures=False).report.read_text()
