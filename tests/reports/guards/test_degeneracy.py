"""An arm stuck on a token has the highest acceptance and must not win; what a model does by itself is no fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from ddbench.records import REQUESTS, Cell
from reports.aggregate import analyse
from reports.choose import best, labelled
from reports.frames import read_run
from reports.guards.degeneracy import LEAST_TOKENS, features, systematic

Change = Callable[[dict[str, Any]], dict[str, Any]]
PLAN = synthetic.Plan(
    shapes={
        "autoregressive": [(None, None, None)],
        "dflash": [(None, 7, None)],
        "ddtree": [(2, 7, 8), (4, 7, 16)],
    },
    prompts=10,
    batch_sizes=(1,),
    temperatures=(0.0, 1.0),
)


def planted(tmp_path: Path, change: Change, prompts: int = 10, width: int | None = 4) -> pd.DataFrame:
    """Results of a synthetic run in which the requests of the trees of a width, first prompts only, are changed."""
    run = tmp_path / "run"
    for cell in synthetic.write_run(run, PLAN):
        if cell.arm.strategy == "ddtree" and cell.arm.width == width:
            rewrite(run, cell, change, prompts)
    return labelled(analyse(read_run(run)).frame)


def rewrite(run: Path, cell: Cell, change: Change, prompts: int) -> None:
    path = run / "cells" / cell.cell_id / "requests.parquet"
    rows = pq.read_table(path).to_pylist()
    rows = [change(row) if index < prompts else row for index, row in enumerate(rows)]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), path)


def says(row: dict[str, Any], ids: Sequence[int], finish: str, rounds: int | None = None) -> dict[str, Any]:
    """A request that said something else, in a tenth of the time."""
    decode = 0.1 * (row["latency_s"] - row["ttft_s"])
    counts = {} if rounds is None else {"rounds": rounds, "accepted": len(ids) - 1 - rounds}
    same = {"output_tokens": len(ids), "output_token_ids": list(ids), "finish_reason": finish}
    return {**row, **same, **counts, "latency_s": row["ttft_s"] + decode}


def stuck(row: dict[str, Any]) -> dict[str, Any]:
    return says(row, [7] * 128, "length", rounds=16)


def verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[(frame["strategy"] == "ddtree") & (frame["width"] == 4)]


def test_an_arm_stuck_on_one_token_does_not_win(tmp_path: Path) -> None:
    frame = planted(tmp_path, stuck)
    bad = verdicts(frame)
    assert len(bad) == 2
    assert (bad["acceptance_length"] == frame["acceptance_length"].max()).all()
    assert (bad["tokens_per_s_per_user"] > 2 * frame["tokens_per_s_per_user"].median()).all()
    assert (bad["status"] == "suspect").all()
    assert bad["reason"].str.startswith("degenerate output: 10 of 10 requests repeat themselves").all()
    assert (bad["distinct_4gram_share"] < 0.01).all()
    winners = best(frame)
    assert not set(winners["point_id"]) & set(bad["point_id"])
    rest = frame.drop(bad.index)
    assert rest["degenerate_reason"].isna().all()
    assert (rest["status"] == "ok").all()


def test_an_arm_that_loops_on_most_prompts_is_found_beside_the_baseline(tmp_path: Path) -> None:
    bad = verdicts(planted(tmp_path, stuck, prompts=7))
    assert (bad["status"] == "suspect").all()
    assert bad["degenerate_reason"].str.contains("70% of requests repeat themselves, 0% of the autoregr").all()


def test_two_looping_prompts_of_ten_are_chance(tmp_path: Path) -> None:
    assert verdicts(planted(tmp_path, stuck, prompts=2))["degenerate_reason"].isna().all()


def test_a_long_loop_shows_in_compression(tmp_path: Path) -> None:
    """Forty distinct tokens repeated: fewer than half of the 4-grams recur, zlib sees it all the same."""

    def repeats(row: dict[str, Any]) -> dict[str, Any]:
        first = np.random.default_rng(int(row["prompt_id"][1:])).integers(0, 512, 40).tolist()
        return says(row, (first * 3)[:75], "length")

    bad = verdicts(planted(tmp_path, repeats))
    assert bad["degenerate_reason"].str.contains("its text compresses to 1/").all()
    assert not bad["degenerate_reason"].str.contains("repeat themselves").any()


@pytest.mark.parametrize("factor", [0.2, 4])
def test_another_length_is_found(tmp_path: Path, factor: float) -> None:
    def resized(row: dict[str, Any]) -> dict[str, Any]:
        length = max(int(factor * row["output_tokens"]), 1)
        return says(row, np.random.default_rng(length).integers(0, 512, length).tolist(), row["finish_reason"])

    bad = verdicts(planted(tmp_path, resized))
    assert np.allclose(bad["length_ratio_vs_autoregressive"].astype(float), factor, rtol=0.1)
    assert bad["degenerate_reason"].str.contains("times as long as the autoregressive arm's").all()


def test_an_arm_that_never_stops_is_found(tmp_path: Path) -> None:
    def endless(row: dict[str, Any]) -> dict[str, Any]:
        return says(row, row["output_token_ids"], "length")

    bad = verdicts(planted(tmp_path, endless))
    assert bad["degenerate_reason"].str.contains("0% of requests end by themselves").all()


def test_without_a_baseline_only_an_arm_that_loops_everywhere_is_suspect(tmp_path: Path) -> None:
    for prompts, expected in ((10, "suspect"), (9, "suspect"), (7, "ok")):
        run = tmp_path / str(prompts)
        plan = synthetic.Plan(shapes={"ddtree": [(4, 7, 16)]}, prompts=10, batch_sizes=(1,))
        for cell in synthetic.write_run(run, plan):
            rewrite(run, cell, stuck, prompts)
        assert analyse(read_run(run)).frame["status"].tolist() == [expected]


def test_a_model_that_loops_by_itself_is_not_the_arms_fault(tmp_path: Path) -> None:
    """Half of the prompts loop under every arm alike."""
    run = tmp_path / "run"
    for cell in synthetic.write_run(run, PLAN):
        rewrite(run, cell, stuck, 5)
    frame = analyse(read_run(run)).frame
    assert frame["degenerate_reason"].isna().all()
    assert (frame["distinct_4gram_share"] < 0.9).all()


@given(st.lists(st.integers(0, 3), max_size=40))
def test_repetition_is_counted_as_it_is_defined(ids: list[int]) -> None:
    made = pd.DataFrame(
        {"prompt_id": ["p"], "output_tokens": [len(ids)], "finish_reason": ["stop"], "output_token_ids": [ids]}
    )
    row = features(made.astype({"finish_reason": "string"})).iloc[0]
    grams = [tuple(ids[start : start + 4]) for start in range(len(ids) - 3)]
    assert (row["ngrams"], row["distinct"]) == (len(grams), len(set(grams)))
    assert np.isnan(row["loops"]) == (len(ids) < LEAST_TOKENS)
    if len(ids) >= LEAST_TOKENS:
        assert bool(row["loops"]) == (2 * len(set(grams)) <= len(grams))


def test_chance_is_told_from_system() -> None:
    assert systematic(7, 0, 20)  # 1/128
    assert not systematic(6, 0, 20)  # 1/64
    assert systematic(3, 0, 3)
    assert not systematic(2, 0, 2)
    assert not systematic(6, 5, 11)
    assert not systematic(0, 0, 5)


def test_identically_distributed_arms_are_rarely_blamed() -> None:
    """Over 2,000 draws of 20 prompts that change by chance alone, at most 1 % (and its error) are called systematic."""
    rng = np.random.default_rng(4)
    change = rng.choice([-1, 0, 1], size=(2000, 20))
    blamed = sum(systematic(int((row > 0).sum()), int((row < 0).sum()), 20) for row in change)
    assert blamed <= 34  # the 0.999 quantile of Binomial(2000, 0.01)


def told(tmp_path: Path, shapes: dict[str, Any], change: Change, strategies: tuple[str, ...]) -> pd.DataFrame:
    """Results of a greedy synthetic run of some shapes in which the requests of some strategies are changed."""
    run = tmp_path / "run"
    for cell in synthetic.write_run(run, synthetic.Plan(shapes=shapes, prompts=10, batch_sizes=(1,))):
        if cell.arm.strategy in strategies:
            rewrite(run, cell, change, 10)
    return analyse(read_run(run)).frame.set_index("strategy")


def test_the_autoregressive_arm_is_blamed_where_the_others_agree(tmp_path: Path) -> None:
    shapes = {"autoregressive": [(None, None, None)], "dflash": [(None, 7, None)], "ddtree": [(2, 7, 8)]}

    def cut(row: dict[str, Any]) -> dict[str, Any]:
        return says(row, row["output_token_ids"][:8], "stop")

    frame = told(tmp_path, shapes, cut, ("autoregressive",))
    assert frame["status"].to_dict() == {"autoregressive": "suspect", "dflash": "ok", "ddtree": "ok"}
    assert "times as long as the speculative arms'" in frame.loc["autoregressive", "reason"]


def test_without_an_autoregressive_arm_the_others_stand_in(tmp_path: Path) -> None:
    shapes = {"dflash": [(None, 7, None)], "eagle": [(4, 4, 16)], "ddtree": [(2, 7, 8)]}

    def mostly(row: dict[str, Any]) -> dict[str, Any]:
        return stuck(row) if int(row["prompt_id"][1:]) < 8 else row

    frame = told(tmp_path, shapes, mostly, ("ddtree",))
    assert frame["status"].to_dict() == {"dflash": "ok", "eagle": "ok", "ddtree": "suspect"}
    assert (frame["degeneracy_baseline"] == "2 other arms").all()


def test_text_that_was_not_stored_is_not_judged(tmp_path: Path) -> None:
    frame = told(tmp_path, {"ddtree": [(2, 7, 8)]}, lambda row: {**row, "output_token_ids": None}, ("ddtree",))
    assert frame[["compression_ratio", "distinct_4gram_share", "degenerate_reason"]].isna().all(axis=None)


def test_shorter_on_most_prompts_needs_to_be_shorter(tmp_path: Path) -> None:
    """Total length falls below half by one huge prompt of the baseline alone: nothing systematic."""
    shapes = {"autoregressive": [(None, None, None)], "ddtree": [(2, 7, 8)]}

    def grown(row: dict[str, Any]) -> dict[str, Any]:
        if row["prompt_id"] != "p000":
            return row
        return says(row, np.random.default_rng(0).integers(0, 512, 2000).tolist(), row["finish_reason"])

    frame = told(tmp_path, shapes, grown, ("autoregressive",))
    assert frame.loc["ddtree", "length_ratio_vs_autoregressive"] < 0.5
    assert frame["degenerate_reason"].isna().all()
