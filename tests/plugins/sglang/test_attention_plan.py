"""How the verify pass's attention is cut: by a rule of sizes alone, which is what the measurement says."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attention_grid import name_of
from ddbench.plugins.kernels.device import shared_bytes_of
from ddbench.plugins.kernels.tiles import Tile
from ddbench.plugins.sglang.kernels.attention_plan import MOST_ROWS, Plan, entries_of, plan, shape_of

HEADS, KV_HEADS, HEAD = 32, 8, 128  # Qwen3-8B
H200, PRO_6000 = ((9, 0), 132), ((12, 0), 188)
EVIDENCE = Path(__file__).resolve().parents[3] / "docs" / "evidence"


def of_8b(width: int, batch: int, gpu: tuple[tuple[int, int], int] = H200) -> Plan:
    capability, multiprocessors = gpu
    return plan(width, batch, HEADS, KV_HEADS, HEAD, multiprocessors, element=2, shared=shared_bytes_of(capability))


@pytest.mark.parametrize("gpu", [H200, PRO_6000])
def test_all_widths_have_one_tile_on_both_gpus(gpu: tuple[tuple[int, int], int]) -> None:
    assert {of_8b(width, 8, gpu=gpu).tile for width in (16, 17, 32, 64, 128)} == {Tile(64, 32, 4, 3)}
    assert of_8b(9, 8, gpu=gpu).tile == Tile(64, 32, 4, 3)
    assert of_8b(2, 8, gpu=gpu).tile == Tile(16, 32, 4, 3)


def test_splits_until_there_is_a_program_a_multiprocessor() -> None:
    # blocks * key-value heads: 8 programs a sequence of width 16, 32 of 64, 64 of 128; 132 and 188 multiprocessors
    assert [of_8b(16, batch).splits for batch in (1, 2, 4, 8, 16, 64)] == [16, 8, 4, 2, 1, 1]
    assert [of_8b(64, batch).splits for batch in (1, 2, 3, 4, 8, 64)] == [4, 2, 1, 1, 1, 1]
    assert [of_8b(128, batch).splits for batch in (1, 2, 4)] == [2, 1, 1]
    assert [of_8b(64, batch, gpu=PRO_6000).splits for batch in (1, 2, 3, 4)] == [5, 2, 1, 1]


def rows_of(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((EVIDENCE / name).read_text())["measured"]["rows"]
    return found


def over_best(rows: Sequence[dict[str, Any]], shape: str, fill: int) -> list[float] | None:
    """Times of a shape over the best plan's, point by point, split up to ``fill`` programs a multiprocessor as far as
    was tried; None where a point has not the shape."""
    m, found = int(shape.partition("x")[0]), []
    for row in rows:
        splits = {int(name.rpartition(" ")[2]): us for name, us in row["us"].items() if name.startswith(f"{shape} spl")}
        programs = row["batch"] * KV_HEADS * -(-row["width"] * HEADS // KV_HEADS // m)
        helpful = [each for each in splits if each & (each - 1) == 0 and each <= max(1, fill * H200[1] // programs)]
        if not helpful:
            return None
        found.append(splits[max(helpful)] / min(row["us"].values()))
    return found


def mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def test_no_shape_that_all_points_have_takes_less_than_the_rules() -> None:
    """In the geometric mean of the points; the rule and all others on the same ones."""
    rows = rows_of("sglang_attention.json")
    assert len(rows) == 56
    shapes = {name.rpartition(" splits")[0] for row in rows for name in row["us"]}
    rule = name_of(of_8b(64, 8)).rpartition(" splits")[0]
    for least, most_rows, worse in ((16, 64, 1.0), (32, 128, 0.99)):  # same-step loads: 0.6 % less from width 32 on
        mine = [row for row in rows if row["width"] >= least]
        over = {(shape, fill): over_best(mine, shape, fill) for shape in shapes for fill in (0, 1, 2)}
        means = {name: mean(found) for name, found in over.items() if found is not None}
        assert {int(shape.partition("x")[0]) for shape, _ in means} == {64, most_rows}
        assert min(means.values()) >= worse * means[rule, 1]
    whole = over_best(rows, rule, 1)
    assert whole is not None
    assert mean(whole) == pytest.approx(1.04, abs=0.005)
    assert max(whole) == pytest.approx(1.17, abs=0.006)


def test_the_rules_own_plan_was_measured_but_for_the_most_splits() -> None:
    rows = rows_of("sglang_attention.json")
    plans = [(row, name_of(of_8b(row["width"], row["batch"]))) for row in rows]
    assert {(row["width"], row["batch"]) for row, own in plans if own not in row["us"]} <= {(16, 1)}
    for row in rows_of("sglang_attention_spot.json"):
        assert row["rule"] == name_of(of_8b(row["width"], row["batch"]))
        assert row["rule_us"] == row["us"][row["rule"]]


def test_the_spot_checks_repeat_the_grid_and_say_what_longer_contexts_want() -> None:
    spot = rows_of("sglang_attention_spot.json")
    grid = {(row["width"], row["batch"], row["context"]): row["us"] for row in rows_of("sglang_attention.json")}
    again = [
        us / grid[point][name]
        for row in spot
        if (point := (row["width"], row["batch"], row["context"])) in grid
        for name, us in row["us"].items()
        if name in grid[point]
    ]
    assert len(again) >= 56
    assert 0.97 < min(again) < max(again) < 1.02
    best = {(r["width"], r["batch"]): min(r["us"].values()) / r["rule_us"] for r in spot if r["context"] == 4096}
    assert [round(best[64, batch], 2) for batch in (1, 3, 8)] == [0.83, 0.69, 0.85]
    assert [round(best[16, batch], 2) for batch in (1, 3, 8)] == [1.0, 0.97, 0.82]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("element", [2, 4])
def test_fits_and_keeps_its_sums_in_registers(capability: tuple[int, int], element: int) -> None:
    """At most 64 sums a thread, for heads of up to 128."""
    shared = shared_bytes_of(capability)
    for width in (2, 16, 33, 64, 128):
        for heads, kv_heads, head in ((32, 8, 128), (8, 4, 64), (16, 1, 256), (6, 2, 80), (64, 8, 128)):
            tile = shape_of(width, heads, kv_heads, head, element, shared)
            padded = 1 << (head - 1).bit_length()
            assert tile.bytes(padded, element) <= shared
            assert tile.m * padded // (32 * tile.warps) <= (64 if head <= 128 else 128)


def test_a_workspace_holds_the_splits_of_every_batch() -> None:
    for width in (16, 64, 128):
        room = entries_of(32, width, HEADS, KV_HEADS, HEAD, 2, shared_bytes_of((9, 0)), 132)
        for batch in range(1, 33):
            splits = of_8b(width, batch).splits
            assert splits == 1 or batch * width * splits <= room
        assert room <= 132 * MOST_ROWS // (HEADS // KV_HEADS)
    assert entries_of(32, 16, 64, 64, HEAD, 2, shared_bytes_of((9, 0)), 132) == 16 * 2  # splits at batch 1 alone


def test_a_head_that_no_tile_fits() -> None:
    with pytest.raises(ValueError, match="no attention tile"):
        plan(16, 1, 8, 8, 2048, 132, shared=8 * 1024)
