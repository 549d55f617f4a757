"""What the page says of runs in which little can be said: nothing decoded, one strategy, two blocks, odd names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from synthetic import arm, cell, write_cell, write_run
from test_page import PLAN, SHAPES, edit, page, rows, section, written

from reports import build_report
from reports.figures.style import bars
from reports.sections.text import interval, literal, table, times

AUTOREGRESSIVE = {"autoregressive": SHAPES["autoregressive"]}


def test_nothing_was_decoded(tmp_path: Path) -> None:
    """Every answer ended with the prefill's token: all cells are ok, and no arm has a speed."""
    run = written(tmp_path)
    for name, value in (("output_tokens", 1), ("rounds", 0), ("drafted", 0), ("accepted", 0), ("accepted_raw", 0)):
        for strategy in SHAPES:
            edit(run, f"strategy: {strategy}", name, lambda values, value=value: [value] * len(values))
    for strategy in SHAPES:
        edit(run, f"strategy: {strategy}", "accept_histogram", lambda values: [[] for _ in values])
        edit(run, f"strategy: {strategy}", "output_token_ids", lambda values: [[0] for _ in values])
    paths = build_report(run)
    text = paths.report.read_text()
    why = "all answers ended with their first token: nothing was decoded, so there is no speed"
    assert f"{why}. There is no answer." in section(text, "The answer")
    assert "status ok" not in text
    assert pq.read_table(paths.results)["speedup_vs_autoregressive"].to_pylist() == [None] * 4


def test_one_strategy_planned_is_not_the_fastest(tmp_path: Path) -> None:
    alone = page(written(tmp_path / "a", replace(PLAN, shapes=AUTOREGRESSIVE)))
    assert "only autoregressive decoding was measured: nothing to compare." in section(alone, "The answer")
    trees = page(written(tmp_path / "b", replace(PLAN, shapes={"ddtree": SHAPES["ddtree"]})))
    assert "only ddtree was measured, no baseline (add autoregressive, dflash)." in section(trees, "The answer")
    for text in (alone, trees):
        for word in ("was fastest", "finished here", "the winner", "lead"):
            assert word not in text.split("## All results")[0], word
        assert "No dflash arm was planned" in text


def test_a_strategy_that_failed_was_planned(tmp_path: Path) -> None:
    run = written(tmp_path)
    for path in run.glob("cells/*/cell.yaml"):
        if "strategy: dflash" in path.read_text():
            status = path.with_name("status.json")
            status.write_text(status.read_text().replace('"ok"', '"failed"'))
    assert "No dflash arm finished here" in page(run)


def test_one_arm_against_itself_wins_nothing(tmp_path: Path) -> None:
    run = written(tmp_path, replace(PLAN, shapes=AUTOREGRESSIVE, blocks=4))
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "aa_check": {"pairs": 2, "blocks": 1}}))
    text = page(run)
    assert "one arm was measured against itself: nothing is ranked." in section(text, "The answer")
    assert "was fastest" not in text
    assert "**But 2 pairs say little:**" in section(text, "A/A: one arm against itself")


def test_scenarios_of_one_workload_are_told_apart(tmp_path: Path) -> None:
    run = written(tmp_path)
    for change in ({"max_new_tokens": 16}, {"seed": 8}, {"prompts": 4}):
        plan = replace(PLAN, **change)  # type: ignore[arg-type]
        for strategy, (shape, *_) in SHAPES.items():
            each = cell(plan, arm(strategy, *shape), 1)
            prompts_hash = "another-set" if "prompts" in change else each.prompts_hash
            write_cell(run, plan, replace(each, prompts_hash=prompts_hash))
    text = page(run)
    titles = re.findall(r"^\*\*On (.+?), \w+ was fastest", section(text, "The answer"), re.MULTILINE)
    assert len(set(titles)) == 4
    tails = {title.partition("T = 0 · ")[2] for title in titles}
    assert "12 prompts with hash syntheti · limit 16 · seed 7" in tails
    assert "4 prompts with hash another- · limit 64 · seed 7" in tails
    heads = re.findall(r"^(#+) (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    assert [name for level, name in heads if level == "#"] == ["ddbench report: synthetic/run"]
    assert {name for level, name in heads if level == "##"} >= set(titles)
    assert [level for level, name in heads if name == "Results"] == ["###"] * 4


def test_few_prompts_give_a_line_instead_of_dashes(tmp_path: Path) -> None:
    text = section(
        page(written(tmp_path, replace(PLAN, prompts=4))), "Chosen on one half of the prompts, reported on the other"
    )
    assert "|" not in text.split("![")[0]
    assert "Not given: fewer than 8 prompts" in text


def test_two_blocks_that_say_nothing() -> None:
    row = {"x": 1.91, "x_low": 0.0007, "x_high": 5495.14, "blocks": 2}
    assert interval(row, "x") == "1.91 (2 blocks: too few)"
    assert times(row, "x") == "1.91x (2 blocks: too few)"
    assert interval({**row, "blocks": 3}, "x") == "1.91 [0.00, 5495.14]"
    assert interval({**row, "x_low": 1.0, "x_high": 3.0}, "x") == "1.91 [1.00, 3.00]"


def test_two_blocks_that_disagree_have_no_interval_on_the_page(tmp_path: Path) -> None:
    """The second block of every arm but the baseline decodes ten times as fast."""
    run = written(tmp_path, replace(PLAN, blocks=2))
    for path in run.glob("cells/*/requests.parquet"):
        about = path.with_name("cell.yaml").read_text()
        if "block: 1\n" in about and "strategy: autoregressive\n" not in about:
            stored = pq.read_table(path)
            index = stored.schema.get_field_index("latency_s")
            fast = [row["ttft_s"] + (row["latency_s"] - row["ttft_s"]) / 10 for row in stored.to_pylist()]
            pq.write_table(stored.set_column(index, "latency_s", [fast]), path)
    paths = build_report(run, figures=False)
    text = paths.report.read_text()
    assert "(2 blocks are too few for an interval; load.blocks=3 or more.)" in section(text, "The answer")
    assert "(2 blocks: too few)" in section(text, "Best configuration by batch size")
    found = pq.read_table(paths.results, columns=["speedup_vs_autoregressive_high"]).to_pylist()
    assert max(row["speedup_vs_autoregressive_high"] or 0 for row in found) > 10


@pytest.mark.parametrize("name", ["[x](https://a.example)", "<https://a.example>", "![x](a.png)", "$x$ | *y* `z`"])
def test_names_of_prompt_sets_are_no_markup(tmp_path: Path, name: str) -> None:
    run = written(tmp_path)
    for strategy in SHAPES:
        edit(run, f"strategy: {strategy}", "category", lambda values: [name, "z" * 80] * (len(values) // 2))
    text = page(run)
    shown = section(text, "By category of prompt")
    assert {row[0] for row in rows(shown.split("</summary>")[1])} == {literal(name), "z" * 59 + "…"}
    html = (run / "report.html").read_text()
    assert "a.example</a>" not in html
    assert 'href="https://a.example' not in html
    assert '<img src="a.png"' not in html


def test_text_that_is_escaped_stays_so_in_a_table() -> None:
    (*_, line) = table([{"a": literal("x|y\\|<b>"), "b": "p|q<i>"}])
    assert line == r"| x\|y\\\|\<b> | p\|q\<i> |"


def test_the_ledger_does_not_count_what_was_not_compared(tmp_path: Path) -> None:
    text = section(page(written(tmp_path)), "Losslessness ledger")
    assert "Every request identical: 3 of 3 points." in text
    assert "| autoregressive " not in text or "| – " in next(
        line for line in text.splitlines() if line.startswith("| autoregressive")
    )


def test_the_page_is_rebuilt_from_where_the_user_put_it(tmp_path: Path) -> None:
    run = tmp_path / "a b" / "synthetic" / "run"
    write_run(run, PLAN)
    config = {"output_dir": str(tmp_path / "a b"), "name": "synthetic", "run_id": "run"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    text = section(page(run), "How to reproduce")
    assert f"experiment=report 'run={run}'" in text
    assert f'ddbench.load("{run}")' in text


def test_figures_draw_no_bar_that_the_page_would_not_tell() -> None:
    rows = {"x": [2.0, 2.0, 2.0], "x_low": [0.01, 1.5, 0.01], "x_high": [400.0, 2.5, 400.0], "blocks": [2, 2, 3]}
    assert bars(pd.DataFrame(rows), "x").tolist() == [[0.0, 0.5, 1.99], [0.0, 0.5, 398.0]]
