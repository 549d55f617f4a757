"""Results: one row a point, every column of the contract, values that follow from the stored integers by hand."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
from by_hand import stored_request, write_requests
from synthetic import Plan, arm, cell, write_run, write_status

import ddbench
from ddbench.records import REQUESTS
from reports.aggregate import acceptance_by_depth, analyse
from reports.frames import read_run

CONTRACT = """
    point_id cell_ids blocks engine engine_version strategy model drafter dataset width depth nodes batch_size
    temperature requests acceptance_length acceptance_length_unclipped acceptance_length_macro accepted_per_round
    verify_width
    tokens_per_s tokens_per_s_per_user tpot_ms ttft_ms step_ms peak_memory_gib host gpu drafter_revision
    speedup_vs_autoregressive speedup_vs_dflash lossless_share status reason
"""
RATES = ("acceptance_length", "tokens_per_s_per_user", "tokens_per_s", "speedup_vs_autoregressive", "speedup_vs_dflash")


def results(run: Path) -> pd.DataFrame:
    return analyse(read_run(run)).frame


def row_of(frame: pd.DataFrame, strategy: str, **axes: int) -> pd.Series:
    chosen = frame[frame["strategy"] == strategy]
    for axis, value in axes.items():
        chosen = chosen[chosen[axis] == value]
    assert len(chosen) == 1
    return chosen.iloc[0]


def golden_run(run: Path) -> None:
    """Two prompts, 9 and 4 tokens. Decode seconds: autoregressive 0.8 and 0.3, chain 0.5 and 0.25, tree 0.4 and 0.2."""
    plan = Plan(prompts=2)
    arms = {
        "autoregressive": (arm("autoregressive", None, None, None), (0, 0), (0.9, 0.4)),
        "dflash": (arm("dflash", None, 4, None), (4, 2), (0.6, 0.35)),
        "ddtree": (arm("ddtree", 2, 4, 4), (3, 2), (0.5, 0.3)),
    }
    for system, rounds, latencies in arms.values():
        each = cell(plan, system, 1)
        rows = [stored_request(each, p, t, r, s) for p, t, r, s in zip("ab", (9, 4), rounds, latencies, strict=True)]
        write_requests(run, each, rows)


def test_golden_speedups(tmp_path: Path) -> None:
    golden_run(tmp_path)
    frame = results(tmp_path)
    tree, chain, plain = (row_of(frame, name) for name in ("ddtree", "dflash", "autoregressive"))
    assert plain["tokens_per_s_per_user"] == pytest.approx(11 / 1.1)
    assert tree["tokens_per_s_per_user"] == pytest.approx(11 / 0.6)
    assert tree["speedup_vs_autoregressive"] == pytest.approx(1.1 / 0.6)
    assert tree["speedup_vs_dflash"] == pytest.approx(0.75 / 0.6)
    assert chain["speedup_vs_autoregressive"] == pytest.approx(1.1 / 0.75)
    assert plain["speedup_vs_dflash"] == pytest.approx(0.75 / 1.1)
    assert (chain["speedup_vs_dflash"], plain["speedup_vs_autoregressive"]) == (1.0, 1.0)
    assert tree["speedup_vs_dflash_n"] == 2
    assert tree["acceptance_length"] == pytest.approx(11 / 5)
    assert tree["step_ms"] == pytest.approx(120.0)
    assert plain["step_ms"] == pytest.approx(100.0)
    assert (tree["verify_width"], chain["verify_width"], plain["verify_width"]) == (5, 5, 1)
    assert tree["tokens_per_s"] == pytest.approx(13 / 0.5)  # both start at 0, the last ends at 0.5
    assert tree["throughput_ratio_vs_autoregressive"] == pytest.approx((13 / 0.5) / (13 / 0.9))
    assert (frame["lossless_share"] == 1.0).all()


def test_autoregressive_has_no_acceptance(tmp_path: Path) -> None:
    golden_run(tmp_path)
    plain = row_of(results(tmp_path), "autoregressive")
    assert (
        plain[["acceptance_length", "acceptance_length_low", "node_efficiency", "width", "depth", "nodes"]].isna().all()
    )


def test_lossless_share_sees_one_wrong_token(tmp_path: Path) -> None:
    golden_run(tmp_path)
    each = cell(Plan(prompts=2), arm("ddtree", 2, 8, 8), 1)
    rows = [stored_request(each, p, t, 2, 0.5) for p, t in (("a", 9), ("b", 4))]
    rows[1]["output_token_ids"] = [ord("b")] * 3 + [0]
    write_requests(tmp_path, each, rows)
    assert row_of(results(tmp_path), "ddtree", depth=8)["lossless_share"] == 0.5


def test_speedups_use_only_the_prompts_that_both_finished(tmp_path: Path) -> None:
    golden_run(tmp_path)
    each = cell(Plan(prompts=2), arm("ddtree", 2, 8, 8), 1)
    rows = [stored_request(each, "a", 9, 2, 0.3), stored_request(each, "b", 4, 2, 0.3, error="timed out")]
    write_requests(tmp_path, each, rows)
    row = row_of(results(tmp_path), "ddtree", depth=8)
    assert (row["requests"], row["errors"], row["prompts"], row["speedup_vs_autoregressive_n"]) == (1, 1, 1, 1)
    assert row["speedup_vs_autoregressive"] == pytest.approx(0.8 / 0.2)  # prompt a alone, on both sides
    assert pd.isna(row["speedup_vs_autoregressive_low"])  # n = 1: a point without a bar


def test_contract_columns_and_types(small_run: Path, small_plan: Plan) -> None:
    table = analyse(read_run(small_run)).table
    assert set(CONTRACT.split()) <= set(table.column_names)
    assert {f"{rate}{end}" for rate in RATES for end in ("_low", "_high")} <= set(table.column_names)
    assert table.schema.field("cell_ids").type == pa.list_(pa.string())
    frame = analyse(read_run(small_run)).frame
    shapes = sum(len(shapes) for shapes in small_plan.shapes.values())
    assert len(frame) == shapes * len(small_plan.batch_sizes)
    assert frame["point_id"].is_unique
    assert set(frame["strategy"]) == set(small_plan.shapes)
    assert (frame["lossless_share"] == 1.0).all()
    assert (frame["status"] == "ok").all()


def test_no_nan_and_intervals_in_order(small_run: Path) -> None:
    table = analyse(read_run(small_run)).table
    for name in table.column_names:
        if pa.types.is_floating(table.schema.field(name).type):
            assert not any(value != value for value in table[name].to_pylist())  # NaN
    for rate in RATES[:2]:
        rows = zip(*(table[f"{rate}{end}"].to_pylist() for end in ("_low", "", "_high")), strict=True)
        assert all(low < value < high for low, value, high in rows if value is not None)


def test_speedup_is_the_ratio_of_the_rates(small_run: Path) -> None:
    frame = results(small_run)
    for size, group in frame.groupby("batch_size"):
        plain = row_of(group, "autoregressive", batch_size=size)["tokens_per_s_per_user"]
        chain = row_of(group, "dflash", depth=7)["tokens_per_s_per_user"]  # the deepest
        ratios = group["tokens_per_s_per_user"] / plain
        assert ratios.to_list() == pytest.approx(group["speedup_vs_autoregressive"].to_list())
        assert (group["tokens_per_s_per_user"] / chain).to_list() == pytest.approx(group["speedup_vs_dflash"].to_list())


def test_rate_is_acceptance_over_round_time(small_run: Path) -> None:
    frame = results(small_run).dropna(subset=["acceptance_length"])
    product = frame["acceptance_length"] / frame["step_ms"] * 1000
    assert product.to_list() == pytest.approx(frame["tokens_per_s_per_user"].to_list())
    stages = frame[["draft_ms", "build_ms", "verify_ms", "commit_ms"]].sum(axis=1)
    assert (stages <= frame["step_ms"] + 1e-9).all()


def test_depth_rates_add_up(small_run: Path) -> None:
    for point in analyse(read_run(small_run)).points:
        if point.row["strategy"] == "autoregressive":
            continue
        rates = acceptance_by_depth(point)
        raw = point.counts.accepted_raw.sum() / point.counts.rounds.sum()
        assert sum(rate["unconditional"] for rate in rates) == pytest.approx(raw)


def test_blocks_pool_into_one_point(tmp_path: Path) -> None:
    plan = Plan(shapes={"autoregressive": [(None, None, None)]}, batch_sizes=(2,), prompts=6, blocks=3)
    cells = write_run(tmp_path / "run", plan)
    row = row_of(results(tmp_path / "run"), "autoregressive")
    assert row["blocks"] == 3
    assert set(row["cell_ids"]) == {each.cell_id for each in cells}
    assert (row["requests"], row["prompts"]) == (18, 6)
    assert row["tokens_per_s_low"] < row["tokens_per_s"] < row["tokens_per_s_high"]  # blocks are its replicates


def test_blocks_are_paired_by_their_number_not_by_their_place(tmp_path: Path) -> None:
    """The tree lacks block 0, is twice as fast in 1 and 2, and the machine slows down from block to block."""
    run, plan = tmp_path / "run", Plan(prompts=2)
    golden_run(run)
    for status in (run / "cells").iterdir():
        shutil.rmtree(status)
    baseline, tree = arm("autoregressive", None, None, None), arm("ddtree", 2, 4, 4)
    for system, spans in ((baseline, {0: 1.0, 1: 2.0, 2: 4.0}), (tree, {1: 1.0, 2: 2.0})):
        rounds = 0 if system.strategy == "autoregressive" else 4
        for block, span in spans.items():
            each = cell(plan, system, 1).with_block(block)
            write_requests(run, each, [stored_request(each, prompt, 9, rounds, 0.1 + span) for prompt in "ab"])
    row = row_of(results(run), "ddtree")
    assert row["throughput_ratio_vs_autoregressive"] == pytest.approx(
        6.2 / 3.2
    )  # spans with the 0.1 s to the first token
    assert row["throughput_ratio_vs_autoregressive_low"] < 2.0
    assert row["speedup_vs_autoregressive"] == pytest.approx(2.0)


def test_prompts_of_one_batch_are_one_observation_of_time(tmp_path: Path) -> None:
    """Eight prompts at batch size 8 share every round: the same times for all, and an interval of no width."""
    shapes = {"autoregressive": [(None, None, None)], "dflash": [(None, 3, None)]}
    write_run(tmp_path / "run", Plan(shapes=shapes, batch_sizes=(4, 8), prompts=8))
    chain = results(tmp_path / "run")
    chain = chain[chain["strategy"] == "dflash"].set_index("batch_size")
    for timed in ("speedup_vs_autoregressive", "tokens_per_s_per_user", "step_ms"):
        assert pd.notna(chain.loc[8, timed])
        assert pd.isna(chain.loc[8, f"{timed}_low"])
        assert pd.notna(chain.loc[4, f"{timed}_low"])  # two batches' worth
    assert pd.notna(chain.loc[8, "acceptance_length_low"])  # acceptance is each prompt's own


def test_one_block_gives_throughput_without_a_bar(small_run: Path) -> None:
    assert results(small_run)["tokens_per_s_low"].isna().all()


def test_turns_are_one_unit(tmp_path: Path) -> None:
    plan = Plan(shapes={"autoregressive": [(None, None, None)]}, batch_sizes=(1,), prompts=5, turns=3)
    write_run(tmp_path / "run", plan)
    row = row_of(results(tmp_path / "run"), "autoregressive")
    assert (row["requests"], row["prompts"]) == (15, 5)


def test_sampling_has_no_lossless_share(tmp_path: Path) -> None:
    shapes = {"autoregressive": [(None, None, None)], "dflash": [(None, 3, None)]}
    write_run(tmp_path / "run", Plan(shapes=shapes, batch_sizes=(1,), temperatures=(0.0, 1.0), prompts=4))
    frame = results(tmp_path / "run")
    assert frame[frame["temperature"] == 1.0]["lossless_share"].isna().all()
    assert (frame[frame["temperature"] == 0.0]["lossless_share"] == 1.0).all()
    assert frame["speedup_vs_autoregressive"].notna().all()  # each against its own temperature
    assert frame["scenario"].nunique() == 2


def test_unequal_flags_are_not_compared(tmp_path: Path) -> None:
    golden_run(tmp_path)
    other = arm("ddtree", 2, 8, 8)
    each = cell(Plan(prompts=2), replace(other, flags={**other.flags, "threads": 8}), 1)
    write_requests(tmp_path, each, [stored_request(each, p, t, 2, 0.3) for p, t in (("a", 9), ("b", 4))])
    row = row_of(results(tmp_path), "ddtree", depth=8)
    assert pd.isna(row["speedup_vs_autoregressive"])
    assert pd.isna(row["speedup_vs_dflash"])
    assert "threads" in row["baseline_note"]


def test_another_batch_size_is_no_baseline(tmp_path: Path) -> None:
    golden_run(tmp_path)
    each = cell(Plan(prompts=2), arm("ddtree", 2, 4, 4), 8)
    write_requests(tmp_path, each, [stored_request(each, "a", 9, 2, 0.3)])
    row = row_of(results(tmp_path), "ddtree", batch_size=8)
    assert pd.isna(row["speedup_vs_autoregressive"])
    assert "no autoregressive arm" in row["baseline_note"]


def test_failed_cells_give_a_row_without_numbers(tmp_path: Path) -> None:
    golden_run(tmp_path)
    each = cell(Plan(prompts=2), arm("eagle", 4, 4, 8), 1)
    folder = write_status(tmp_path, each, "failed", "out of memory")
    rows = [stored_request(each, "a", 9, 2, 0.001)]  # left behind by the cell that failed: not evidence
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), folder / "requests.parquet")
    row = row_of(results(tmp_path), "eagle")
    assert (row["status"], row["reason"], row["blocks"]) == ("failed", "out of memory", 0)
    assert pd.isna(row["tokens_per_s_per_user"])


def test_load_gives_all_frames(small_run: Path) -> None:
    frames = ddbench.load(str(small_run))
    assert len(frames.cells) == len(frames.results)
    assert set(frames.requests["cell_id"]) == set(frames.cells["cell_id"])
    assert len(frames.rounds) == frames.requests["rounds"].sum()
    assert set(frames.telemetry["name"]) == {"cpu_percent"}
    with pytest.raises(FileNotFoundError, match="no such run folder"):
        ddbench.load(small_run / "absent")


def test_synthetic_integers_conserve(small_run: Path) -> None:
    """The generator itself keeps the rules of the schema, so that the tests above mean something."""
    requests = read_run(small_run).requests
    rounds = read_run(small_run).rounds
    speculative = requests[requests["rounds"] > 0]
    assert (speculative["output_tokens"] - 1 <= speculative["accepted"] + speculative["rounds"]).all()
    sums = rounds.groupby(["cell_id", "prompt_id"])["emitted"].sum()
    tokens = speculative.set_index(["cell_id", "prompt_id"])["output_tokens"] - 1
    assert (sums == tokens.reindex(sums.index)).all()
    assert synthetic.SHAPES


def test_columns_of_a_comparison(tmp_path: Path) -> None:
    shapes = {"autoregressive": [(None, None, None)], "dflash": [(None, 7, None)], "ddtree": [(None, 7, 16)]}
    write_run(tmp_path / "run", Plan(shapes=shapes, batch_sizes=(1,), prompts=12))
    frame = results(tmp_path / "run")
    tree, plain = row_of(frame, "ddtree"), row_of(frame, "autoregressive")
    assert tree["speedup_vs_autoregressive_method"] == "paired bootstrap over prompts, 1 block"
    assert tree["speedup_vs_autoregressive_verdict"] == "faster"
    assert tree["speedup_vs_autoregressive_sign_p"] == pytest.approx(2 / 2**12)  # all twelve prompts above
    assert tree["acceptance_ratio_vs_dflash"] / tree["step_ratio_vs_dflash"] == pytest.approx(tree["speedup_vs_dflash"])
    chain = row_of(frame, "dflash")
    difference = tree["acceptance_length"] - chain["acceptance_length"]
    assert tree["acceptance_difference_vs_dflash"] == pytest.approx(difference)
    assert tree["acceptance_difference_vs_dflash_low"] < difference < tree["acceptance_difference_vs_dflash_high"]
    assert (tree["tokens_per_s_n"], tree["throughput_ratio_vs_dflash_n"]) == (1, 1)
    assert pd.isna(plain["acceptance_ratio_vs_dflash"])  # it has no rounds
    of_itself = [f"speedup_vs_autoregressive_{name}" for name in ("method", "verdict", "sign_p")]
    assert plain[of_itself].isna().all()


def test_three_blocks_have_t_intervals(tmp_path: Path) -> None:
    shapes = {"autoregressive": [(None, None, None)], "dflash": [(None, 7, None)]}
    write_run(tmp_path / "run", Plan(shapes=shapes, batch_sizes=(1, 8), prompts=10, blocks=3))
    frame = results(tmp_path / "run")
    alone, batch = row_of(frame, "dflash", batch_size=1), row_of(frame, "dflash", batch_size=8)
    assert alone["speedup_vs_autoregressive_method"] == "paired t over 3 blocks and prompts"
    assert batch["speedup_vs_autoregressive_method"] == "paired t over 3 blocks"  # the prompts share a clock
    assert pd.notna(batch["speedup_vs_autoregressive_low"])
    assert pd.isna(batch["speedup_vs_autoregressive_sign_p"])
    assert alone["tokens_per_s_n"] == 3


def test_a_partner_has_the_same_block(tmp_path: Path) -> None:
    """Prompt a failed in block 1 of the tree: block 1 of the baseline's a counts for nothing either."""
    plan = Plan(prompts=2)
    for system, seconds in (
        (arm("autoregressive", None, None, None), (0.8, 1.6)),
        (arm("ddtree", 2, 4, 4), (0.4, 0.4)),
    ):
        rounds = 0 if system.strategy == "autoregressive" else 4
        for block, wall in enumerate(seconds):
            each = cell(plan, system, 1).with_block(block)
            lost = {"error": "timed out"} if rounds and block == 1 else {}
            rows = [stored_request(each, "a", 9, rounds, 0.1 + wall, **lost)]
            write_requests(tmp_path, each, [*rows, stored_request(each, "b", 9, rounds, 0.1 + wall)])
    row = row_of(results(tmp_path), "ddtree")
    assert row["speedup_vs_autoregressive"] == pytest.approx((0.8 + 0.8 + 1.6) / (3 * 0.4))


def test_percentiles_and_steady_columns(small_run: Path) -> None:
    frame = results(small_run)
    requests = read_run(small_run).requests
    for _, row in frame.iterrows():
        mine = requests[requests["cell_id"].isin(row["cell_ids"])]["latency_s"].to_numpy(dtype=float) * 1000
        assert row["p50_latency_ms"] == pytest.approx(np.median(mine))
        assert row["p95_latency_ms"] == pytest.approx(np.percentile(mine, 95))
    assert frame["p99_latency_ms"].isna().all()  # 8 requests
    assert frame["p90_ttft_ms"].notna().all()
    assert (frame["steady_short"] == (frame["steady_window_s"] < 5)).all()  # none of 8 prompts turns over 10 times
    assert (frame["status"] == "ok").all()  # a short window marks a number, not the point


def test_distance_to_the_bandwidth_ceiling(tmp_path: Path) -> None:
    """2 GB of weights at 1 TB/s: 2 ms a round at least. The tree takes 120 ms, on two GPUs at half that floor."""
    golden_run(tmp_path)
    other = arm("ddtree", 2, 8, 8)
    each = cell(Plan(prompts=2), replace(other, flags={**other.flags, "tensor_parallel": 2}), 1)
    write_requests(tmp_path, each, [stored_request(each, p, t, r, 0.2) for p, t, r in (("a", 9, 3), ("b", 4, 2))])
    for path in (tmp_path / "cells").glob("*/status.json"):
        known = {"target_weight_bytes": 2_000_000_000, "gpu_bytes_per_s": 1_000_000_000_000}
        path.write_text(json.dumps({**json.loads(path.read_text()), **known}))
    frame = results(tmp_path)
    tree, plain = row_of(frame, "ddtree", depth=4), row_of(frame, "autoregressive")
    assert plain["bandwidth_ceiling_tokens_per_s"] == pytest.approx(500.0)
    assert plain["bandwidth_share"] == pytest.approx(10.0 / 500)
    assert tree["bandwidth_ceiling_tokens_per_s"] == pytest.approx(11 / 5 * 500)
    assert tree["bandwidth_share"] == pytest.approx(0.002 / 0.120)
    assert row_of(frame, "ddtree", depth=8)["bandwidth_ceiling_tokens_per_s"] == pytest.approx(11 / 5 * 1000)


def test_an_unknown_bandwidth_is_null(small_run: Path) -> None:
    assert results(small_run)[["bandwidth_ceiling_tokens_per_s", "bandwidth_share"]].isna().all(axis=None)


def test_categories_add_up(small_run: Path) -> None:
    analysis = analyse(read_run(small_run))
    whole, parts = analysis.frame.set_index("point_id"), analysis.categories
    assert set(parts["category"]) == {"code", "prose", "list"}
    sums = parts.groupby("point_id")[["requests", "prompts"]].sum()
    assert (sums["requests"] == whole["requests"].reindex(sums.index)).all()
    requests = read_run(small_run).requests
    for row in parts[parts["acceptance_length"].notna()].to_dict("records"):
        ids = whole.loc[row["point_id"], "cell_ids"]
        mine = requests[requests["cell_id"].isin(ids) & (requests["category"] == row["category"])]
        assert row["acceptance_length"] == pytest.approx((mine["output_tokens"] - 1).sum() / mine["rounds"].sum())
    chain = whole[whole["strategy"] == "dflash"]["dflash_point_id"].iloc[0]
    assert parts[parts["point_id"] == chain]["speedup_vs_dflash"].isna().all()  # of the baseline itself
    assert parts[parts["point_id"] == chain]["speedup_vs_autoregressive"].notna().all()


def test_one_row_of_acceptance_variants_a_point(small_run: Path) -> None:
    analysis = analyse(read_run(small_run))
    variants, frame = analysis.acceptance_variants, analysis.frame
    assert variants["point_id"].tolist() == frame["point_id"].tolist()
    assert np.allclose(
        variants["ddbench"].to_numpy(float, na_value=-1), frame["acceptance_length"].to_numpy(float, na_value=-1)
    )
