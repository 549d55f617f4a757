"""How the verify pass's attention is cut: by a rule of sizes alone, which is what the measurement says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ddbench.plugins.kernels.device import shared_bytes_of
from ddbench.plugins.kernels.tiles import Tile
from ddbench.plugins.sglang.kernels.attention_plan import MOST_ROWS, Plan, entries_of, plan, shape_of

HEADS, KV_HEADS, HEAD = 32, 8, 128  # Qwen3-8B
H200, PRO_6000 = ((9, 0), 132), ((12, 0), 188)
EVIDENCE = Path(__file__).resolve().parents[3] / "docs" / "evidence" / "sglang_attention.json"


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


def measured(row: dict[str, Any], shape: str, fill: int, programs: int) -> float:
    """Microseconds of a shape, split up to ``fill`` programs a multiprocessor, as far as the grid has splits."""
    most = max(1, fill * H200[1] // programs)
    return float(row["us"][f"{shape} splits {max(each for each in (1, 2, 4, 8) if each <= most)}"])


def test_the_rule_is_the_one_with_the_least_measured_time() -> None:
    """In the geometric mean of all points, and at the worst of them, each held against the best plan of its point."""
    rows = json.loads(EVIDENCE.read_text())["measured"]["rows"]
    assert len(rows) == 56
    over: dict[tuple[str, int], list[float]] = {}
    chosen = []
    for row in rows:
        width, batch, best = row["width"], row["batch"], min(row["us"].values())
        group = HEADS // KV_HEADS
        for shape, m in (("64x32 warps 4 stages 3 ahead", 64), ("128x64 warps 8 stages 3 ahead", 128)):
            for fill in (0, 1, 2):
                if width * group >= m:
                    programs = batch * KV_HEADS * width * group // m
                    over.setdefault((shape, fill), []).append(measured(row, shape, fill, programs) / best)
        own = of_8b(width, batch)
        shape = f"{own.tile.m}x{own.tile.n} warps {own.tile.warps} stages {own.tile.stages} ahead"
        chosen.append(row["us"][f"{shape} splits {min(own.splits, 8)}"] / best)
    means = {name: math.exp(sum(map(math.log, each)) / len(each)) for name, each in over.items()}
    assert chosen == over["64x32 warps 4 stages 3 ahead", 1]
    assert min(means, key=lambda name: means[name]) == ("64x32 warps 4 stages 3 ahead", 1)
    assert min(over, key=lambda name: max(over[name])) == ("64x32 warps 4 stages 3 ahead", 1)
    assert means["64x32 warps 4 stages 3 ahead", 1] == pytest.approx(1.04, abs=0.005)
    assert max(chosen) == pytest.approx(1.17, abs=0.006)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("element", [2, 4])
def test_fits_and_has_no_more_rows_than_registers(capability: tuple[int, int], element: int) -> None:
    shared = shared_bytes_of(capability)
    for width in (2, 16, 33, 64, 128):
        for heads, kv_heads, head in ((32, 8, 128), (8, 4, 64), (16, 1, 256), (6, 2, 80), (64, 8, 128)):
            tile = shape_of(width, heads, kv_heads, head, element, shared)
            assert tile.bytes(1 << (head - 1).bit_length(), element) <= shared
            assert tile.m <= MOST_ROWS


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
