"""The shape chosen on one half of the prompts and reported on the other."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import Plan, arm, cell, write_run, write_status

from ddbench.records import REQUESTS
from reports.aggregate import analyse
from reports.frames import read_run
from reports.selection import LEAST_PROMPTS, halves


def chosen(run: Path, strategy: str = "ddtree") -> pd.Series:
    frame = analyse(read_run(run)).selection
    rows = frame[frame["strategy"] == strategy]
    assert len(rows) == 1
    return rows.iloc[0]


def store(run: Path, shape: tuple[int | None, int | None, int | None], strategy: str, seconds: dict[str, float]) -> str:
    """One arm whose prompt p decodes 10 tokens in ``seconds[p]``; returns its point id."""
    each = cell(Plan(prompts=len(seconds)), arm(strategy, *shape), 1)
    rows = [
        {
            "cell_id": each.cell_id,
            "block": 0,
            "prompt_id": prompt,
            "turn": 0,
            "repeat": 0,
            "dataset": "d",
            "category": "c",
            "output_tokens": 11,
            "rounds": 0 if strategy == "autoregressive" else 5,
            "drafted": 20,
            "accepted": 5,
            "accepted_raw": 5,
            "start_s": 0.0,
            "ttft_s": 0.0,
            "latency_s": wall,
            "output_token_ids": list(range(11)),
        }
        for prompt, wall in seconds.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), write_status(run, each, "ok") / "requests.parquet")
    return each.point_id


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.sampled_from("abc"), max_size=40))
def test_halves_are_equal_within_categories(categories: dict[str, str]) -> None:
    choose, report = halves(categories)
    assert choose | report == set(categories)
    assert not choose & report
    assert 0 <= len(choose) - len(report) <= 1
    for category in "abc":
        mine = {prompt for prompt, name in categories.items() if name == category}
        assert abs(len(mine & choose) - len(mine & report)) <= 1


def test_halves_depend_on_the_prompts_alone() -> None:
    """Not on their order, and not on the process: Python's own hash differs from one to the next."""
    names = {f"p{i:02d}": "ab"[i % 2] for i in range(12)}
    assert halves(names) == halves(dict(reversed(names.items())))
    assert sorted(halves(names)[0]) == ["p01", "p06", "p08", "p09", "p10", "p11"]


def test_chosen_by_hand(tmp_path: Path) -> None:
    """One shape is faster on the half that chooses, the other on the other half and, in hindsight, over all."""
    prompts = [f"p{i:02d}" for i in range(LEAST_PROMPTS)]
    choose, report = halves(dict.fromkeys(prompts, "c"))
    luck = store(tmp_path, (2, 4, 4), "ddtree", {p: 0.4 if p in choose else 1.0 for p in prompts})
    good = store(tmp_path, (4, 4, 8), "ddtree", dict.fromkeys(prompts, 0.5))
    store(tmp_path, (None, None, None), "autoregressive", dict.fromkeys(prompts, 1.0))
    row = chosen(tmp_path)
    assert (row["chosen_point_id"], row["hindsight_point_id"]) == (luck, good)
    assert row["value"] == pytest.approx(10.0)  # on the half that did not choose it: 10 tokens a second, not 25
    assert row["speedup_vs_autoregressive"] == pytest.approx(1.0)
    assert row["hindsight_value"] == pytest.approx(20.0)
    assert row["hindsight_speedup"] == pytest.approx(2.0)
    assert (row["prompts_choose"], row["prompts_report"]) == (len(choose), len(report))
    assert (row["chosen_label"], row["hindsight_label"]) == ("ddtree w2 d4 n4", "ddtree w4 d4 n8")
    assert pd.isna(row["note"])


def test_too_few_prompts_choose_nothing(tmp_path: Path) -> None:
    shapes = {"autoregressive": [(None, None, None)], "ddtree": [(2, 3, 8), (2, 7, 16)]}
    write_run(tmp_path / "run", Plan(shapes=shapes, batch_sizes=(1,), prompts=LEAST_PROMPTS - 1))  # type: ignore[arg-type]
    row = chosen(tmp_path / "run")
    assert pd.isna(row["chosen_point_id"])
    assert pd.isna(row["value"])
    assert pd.notna(row["hindsight_point_id"])
    assert f"fewer than {LEAST_PROMPTS} prompts" in row["note"]


def test_only_points_that_are_ok_are_chosen(tmp_path: Path) -> None:
    prompts = [f"p{i:02d}" for i in range(10)]
    good = store(tmp_path, (4, 4, 8), "ddtree", dict.fromkeys(prompts, 0.5))
    each = cell(Plan(prompts=10), arm("ddtree", 2, 4, 4), 1)
    store(tmp_path, (2, 4, 4), "ddtree", dict.fromkeys(prompts, 0.1))
    write_status(tmp_path, each, "suspect", "counts do not add up")
    row = chosen(tmp_path)
    assert row["chosen_point_id"] == row["hindsight_point_id"] == good
    assert "nothing to choose" in row["note"]


def test_one_row_a_batch_size_and_strategy(small_run: Path) -> None:
    frame = analyse(read_run(small_run)).selection
    assert len(frame) == 2 * 4
    assert not frame.duplicated(["scenario", "batch_size", "strategy"]).any()
    assert frame["chosen_point_id"].notna().all()
    assert (frame[frame["strategy"] == "autoregressive"]["speedup_vs_autoregressive"] == 1.0).all()
