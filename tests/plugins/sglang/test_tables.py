"""What a round has at hand of its tables: made once for a number of rows, on the tables' own memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ddbench.plugins.sglang.kernels.buffers import Trees
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.stages import Stage
from ddbench.plugins.sglang.tables import Tables

SIZES = Sizes(verify_width=9, block=4, top_k=3)
ROWS = 5


@pytest.mark.parametrize("rows", [1, 3, ROWS])
def test_blocks_are_the_tables(rows: int) -> None:
    tables = Tables(ROWS, SIZES, "cpu")
    block = tables.draft_rows(rows)
    assert tables.draft_rows(rows) is block
    for at, table in enumerate((tables.block_ids, tables.chain, tables.draft_slots)):
        table.copy_(torch.arange(table.numel()).view(table.shape) + 1000 * at)
    for table, found, flat in (
        (tables.block_ids, block.ids, block.flat_ids),
        (tables.chain, block.chain, block.flat_chain),
        (tables.draft_slots, block.slots, block.flat_slots),
    ):
        assert torch.equal(found, table[:rows])
        assert flat.tolist() == table[:rows].flatten().tolist()


@pytest.mark.parametrize("rows", [1, ROWS])
def test_windows_are_the_stages_tables(rows: int) -> None:
    tables, trees = Tables(ROWS, SIZES, "cpu"), Trees(ROWS, SIZES.verify_width, SIZES.block, "cpu")
    stage = Stage(SIZES.verify_width, trees, tables.slots, tables.positions)
    window = stage.rows(rows)
    assert stage.rows(rows) is window
    held = (tables.slots, tables.positions, trees.tokens, trees.first_child, trees.next_sibling)
    for at, table in enumerate(held):
        table.copy_(torch.arange(table.numel()).view(table.shape) + 1000 * at)
    assert torch.equal(window.slots, tables.slots[:rows])
    assert torch.equal(window.positions, tables.positions[:rows])
    assert torch.equal(window.first_child, trees.first_child[:rows])
    assert torch.equal(window.next_sibling, trees.next_sibling[:rows])
    flats = (window.flat_slots, window.flat_positions, window.flat_tokens)
    for flat, table in zip(flats, held, strict=False):
        assert flat.tolist() == table[:rows].flatten().tolist()


def test_what_the_host_knows_of_lengths_is_summed_once() -> None:
    tables = Tables(ROWS, SIZES, "cpu")
    batch = SimpleNamespace(seq_lens=torch.tensor([7, 9]), seq_lens_cpu=torch.tensor([5, 8]))
    found = tables.bound(batch, None, 4)
    assert (found.each.tolist(), found.total) == ([9, 12], 21)
    batch.seq_lens_cpu = None
    found = tables.bound(batch, SimpleNamespace(reserved_seq_lens_cpu=torch.tensor([30, 40])), 4)
    assert (found.each.tolist(), found.total) == ([30, 40], 70)
