"""Who is named first where arms have unequal blocks; sign tests, ties and pairs by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from by_hand import stored_request, write_requests
from synthetic import Plan, arm, cell, write_status

from reports import build_report
from reports.aggregate import analyse
from reports.choose import RANK, RATE, best, labelled
from reports.frames import read_run
from reports.statistics import sign_test

PLAIN, CHAIN, TREE = arm("autoregressive", None, None, None), arm("dflash", None, 4, None), arm("ddtree", 2, 4, 4)


def said(prompt: str) -> list[int]:
    """Nine tokens that do not repeat."""
    return list(range(ord(prompt), ord(prompt) + 9))


def store(run: Path, system: object, block: int, seconds: float, prompts: str = "abcd") -> None:
    """A block of one request a prompt, 8 decoded tokens each in ``seconds``."""
    each = cell(Plan(prompts=4), system, 1).with_block(block)  # type: ignore[arg-type]
    rounds = 0 if system is PLAIN else 4
    write_requests(
        run, each, [stored_request(each, p, 9, rounds, 0.1 + seconds, output_token_ids=said(p)) for p in prompts]
    )


def unequal(run: Path) -> None:
    """Block 2 is twice as slow and the tree has none; in blocks 0 and 1 the chain is a tenth faster than the tree."""
    for block, slow in ((0, 1.0), (1, 1.0), (2, 2.0)):
        store(run, PLAIN, block, 2.0 * slow)
        store(run, CHAIN, block, 1.0 * slow)
        if block < 2:
            store(run, TREE, block, 1.1 * slow)


def test_an_arm_without_the_slow_block_does_not_win(tmp_path: Path) -> None:
    unequal(tmp_path)
    frame = labelled(analyse(read_run(tmp_path)).frame)
    own, rank = (dict(zip(frame["strategy"], frame[name], strict=True)) for name in (RATE, RANK))
    assert own["ddtree"] > own["dflash"]  # by its own rate it would
    assert rank == {name: pytest.approx(8 / s) for name, s in (("autoregressive", 2), ("dflash", 1), ("ddtree", 1.1))}
    assert best(frame)["strategy"].tolist() == ["dflash", "ddtree", "autoregressive"]
    assert best(frame.drop(columns=[RANK]))["strategy"].iloc[0] == "ddtree"  # a frame from before


def test_the_first_page_says_that_blocks_are_unequal(tmp_path: Path) -> None:
    run = tmp_path / "synthetic" / "run"
    run.mkdir(parents=True)
    unequal(run)
    write_status(run, cell(Plan(prompts=4), arm("ddtree", 4, 4, 8), 1), "failed", "out of memory")
    text = build_report(run, figures=False).report.read_text().partition("## Results")[0]
    assert "Arms have unequal blocks or requests at batch size 1." in text
    assert "1 point failed (ddtree 1)**: out of memory" in text
    assert "dflash was fastest" in text


def test_a_doubtful_baseline_and_foreign_text_stand_beside_the_answer(tmp_path: Path) -> None:
    run = tmp_path / "synthetic" / "run"
    run.mkdir(parents=True)
    store(run, PLAIN, 0, 2.0)
    store(run, CHAIN, 0, 1.0)
    each = cell(Plan(prompts=4), TREE, 1)
    rows = [stored_request(each, p, 9, 4, 0.6, output_token_ids=list(range(9))) for p in "abcd"]
    write_requests(run, each, rows)
    write_status(run, cell(Plan(prompts=4), PLAIN, 1), "suspect", "it was hot")
    text = build_report(run, figures=False).report.read_text()
    answer = text.partition("## The answer")[2].partition("\n## ")[0]
    assert "autoregressive arm at batch size 1 is suspect: it was hot" in answer
    assert "its text is not the target's" in answer
    assert "0 % of 4 requests identical" in answer
    assert "No autoregressive arm finished" not in text
    assert "Speed-up given, but" in text


def test_sign_p_counts_prompts_over_all_blocks(tmp_path: Path) -> None:
    """In block 0 the tree is slower on every prompt, over both blocks it is faster on every one."""
    for block, seconds in ((0, 1.1), (1, 0.2)):
        store(tmp_path, PLAIN, block, 1.0, "abcdef")
        store(tmp_path, TREE, block, seconds, "abcdef" if block else "abc")
    row = next(r for r in analyse(read_run(tmp_path)).table.to_pylist() if r["strategy"] == "ddtree")
    assert row["speedup_vs_autoregressive_sign_p"] == pytest.approx(2 * 0.5**6)


def test_ties_say_nothing() -> None:
    assert sign_test(np.asarray([1.0, 1.0, 1.0, 2.0, 3.0])) == pytest.approx(0.5)
    assert sign_test(np.asarray([1.0, 1.0])) is None


def test_the_throughput_ratio_pairs_blocks_in_order(tmp_path: Path) -> None:
    """The tree takes half of the time in each block, so that paired blocks leave no width."""
    for block, seconds in ((0, 1.0), (1, 2.0), (2, 5.0)):
        store(tmp_path, PLAIN, block, seconds - 0.1)
        store(tmp_path, TREE, block, seconds / 2 - 0.1)
    row = next(r for r in analyse(read_run(tmp_path)).table.to_pylist() if r["strategy"] == "ddtree")
    ends = [row[f"throughput_ratio_vs_autoregressive{end}"] for end in ("", "_low", "_high")]
    assert ends == pytest.approx([2.0, 2.0, 2.0])


def test_the_chain_of_the_same_drafter_is_the_baseline(tmp_path: Path) -> None:
    """A deeper chain of another drafter is none."""
    other = dataclasses.replace(arm("dflash", None, 8, None), drafter="another")
    for system in (PLAIN, CHAIN, other, TREE):
        store(tmp_path, system, 0, 1.0)
    rows = analyse(read_run(tmp_path)).table.to_pylist()
    tree = next(row for row in rows if row["strategy"] == "ddtree")
    assert tree["dflash_point_id"] == next(row["point_id"] for row in rows if row["depth"] == 4 and not row["nodes"])


def test_a_category_is_paired_on_its_own_prompts_and_null_is_kept(tmp_path: Path) -> None:
    for system, seconds in ((PLAIN, (1.0, 1.0)), (TREE, (0.5, 0.25))):
        each = cell(Plan(prompts=2), system, 1)
        rounds = 0 if system is PLAIN else 4
        named = zip("ab", ("code", None), seconds, strict=True)
        write_requests(
            tmp_path, each, [stored_request(each, p, 9, rounds, 0.1 + s, category=name) for p, name, s in named]
        )
    frame: pd.DataFrame = analyse(read_run(tmp_path)).categories
    mine = frame[frame["speedup_vs_autoregressive"].notna()].set_index("category")["speedup_vs_autoregressive"]
    assert mine.to_dict() == {"code": pytest.approx(2.0), "uncategorised": pytest.approx(4.0)}
