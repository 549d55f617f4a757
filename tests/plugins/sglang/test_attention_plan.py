"""How the verify pass's attention is cut: by a rule of sizes alone, the measured sizes as they were measured."""

from __future__ import annotations

import pytest

from ddbench.plugins.kernels.device import shared_bytes_of
from ddbench.plugins.kernels.tiles import Tile, splits_of, tile_of, window_entries, window_programs
from ddbench.plugins.sglang.kernels.attention_plan import MEASURED_ROWS, Plan, entries_of, plan, shape_of

HEADS, KV_HEADS, HEAD = 32, 8, 128  # Qwen3-8B
H200, PRO_6000 = ((9, 0), 132), ((12, 0), 188)


def of_8b(width: int, batch: int, gpu: tuple[tuple[int, int], int] = H200) -> Plan:
    capability, multiprocessors = gpu
    return plan(width, batch, HEADS, KV_HEADS, HEAD, multiprocessors, element=2, shared=shared_bytes_of(capability))


@pytest.mark.parametrize("gpu", [H200, PRO_6000])
@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16, 32, 64])
def test_up_to_the_measured_rows_nothing_has_changed(gpu: tuple[tuple[int, int], int], batch: int) -> None:
    for width in (2, 9, 16):
        usual = tile_of(width * 4, HEAD, 2, shared_bytes_of(gpu[0]))
        splits = splits_of(window_programs(batch, width, HEADS, KV_HEADS, usual), gpu[1])
        assert of_8b(width, batch, gpu=gpu) == Plan(usual, splits, ahead=False)


def test_wider_windows_have_blocks_of_64_rows_that_fill_the_device_once() -> None:
    for width in (17, 32, 64, 128):
        assert of_8b(width, 8).tile == Tile(64, 32, 4, 4)
        assert of_8b(width, 8).ahead
        assert of_8b(width, 8, gpu=PRO_6000).tile == Tile(64, 32, 4, 3)
    # blocks * key-value heads * rows: 32 programs a sequence of width 64, two of 264 that fit at once for each of 132
    assert [of_8b(64, batch).splits for batch in (1, 2, 4, 8, 16, 64)] == [8, 4, 2, 1, 1, 1]
    assert [of_8b(128, batch).splits for batch in (1, 2, 4, 8)] == [4, 2, 1, 1]


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("element", [2, 4])
def test_fits_and_holds_its_sums_in_registers(capability: tuple[int, int], element: int) -> None:
    shared = shared_bytes_of(capability)
    for width in (2, 16, 33, 64, 128):
        for heads, kv_heads, head in ((32, 8, 128), (8, 4, 64), (16, 1, 256), (6, 2, 80), (64, 8, 128)):
            tile, ahead = shape_of(width, heads, kv_heads, head, element, shared)
            head_pad = 1 << (head - 1).bit_length()
            assert tile.bytes(head_pad, element) <= shared
            assert ahead == (width * heads // kv_heads > MEASURED_ROWS and element == 2 and head <= 128)
            if ahead:
                assert tile.m * head_pad <= 64 * 32 * tile.warps


def test_a_workspace_holds_the_splits_of_every_batch() -> None:
    for width in (16, 64, 128):
        room = entries_of(32, width, HEADS, KV_HEADS, HEAD, 2, shared_bytes_of((9, 0)), 132)
        for batch in range(1, 33):
            splits = of_8b(width, batch).splits
            assert splits == 1 or batch * width * splits <= room
    usual = tile_of(64, HEAD, 2, shared_bytes_of((9, 0)))
    assert entries_of(32, 16, HEADS, KV_HEADS, HEAD, 2, shared_bytes_of((9, 0)), 132) == window_entries(
        32, 16, HEADS, KV_HEADS, usual, 132
    )


def test_a_head_that_no_tile_fits() -> None:
    with pytest.raises(ValueError, match="no attention tile"):
        plan(16, 1, 8, 8, 2048, 132, shared=8 * 1024)
