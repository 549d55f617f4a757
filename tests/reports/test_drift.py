"""Drift from block to block, by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from by_hand import stored_request, write_requests
from synthetic import Plan, arm, cell, write_run

from reports.aggregate import analyse
from reports.frames import read_run


def store(run: Path, strategy: str, block: int, decode_s: float, started: str) -> None:
    """One request of 8 decoded tokens in ``decode_s``."""
    shape = (None, None, None) if strategy == "autoregressive" else (None, 4, None)
    each = cell(Plan(prompts=1), arm(strategy, *shape), 1).with_block(block)
    write_requests(run, each, [stored_request(each, "a", 9, 0 if shape[1] is None else 4, 0.1 + decode_s)])
    status = run / "cells" / each.cell_id / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "started": started}))


def test_drift_by_hand(tmp_path: Path) -> None:
    """Rates of block 1 are 0.5 and 2/3 of the first one's, of block 2 (one arm alone) 0.8."""
    for block, plain, chain in ((0, 1.0, 0.4), (1, 2.0, 0.6), (2, 1.25, None)):
        store(tmp_path, "autoregressive", block, plain, f"2026-01-01T0{block}:30:00+00:00")
        if chain is not None:
            store(tmp_path, "dflash", block, chain, f"2026-01-01T0{block}:10:00+00:00")
    frame = analyse(read_run(tmp_path)).drift
    assert frame["block"].tolist() == [0, 1, 2]
    assert frame["relative_rate"].tolist() == pytest.approx([1.0, (0.5 * 2 / 3) ** 0.5, 0.8])
    assert frame["n"].tolist() == [2, 2, 1]
    assert [started[11:16] for started in frame["first_started"]] == ["00:10", "01:10", "02:30"]


def test_one_block_has_no_drift(small_run: Path) -> None:
    assert analyse(read_run(small_run)).drift.empty


def test_a_row_a_batch_size_and_block(tmp_path: Path) -> None:
    shapes = {"autoregressive": [(None, None, None)], "dflash": [(None, 3, None)]}
    write_run(tmp_path / "run", Plan(shapes=shapes, batch_sizes=(1, 4), prompts=4, blocks=2))  # type: ignore[arg-type]
    frame = analyse(read_run(tmp_path / "run")).drift
    assert frame[["batch_size", "block", "n"]].to_numpy().tolist() == [[1, 0, 2], [1, 1, 2], [4, 0, 2], [4, 1, 2]]
    assert (frame[frame["block"] == 0]["relative_rate"] == 1.0).all()


def test_an_arm_without_the_first_block_says_nothing(tmp_path: Path) -> None:
    """It grew twice as slow from block 1 to block 2; against the first block nothing is known of it."""
    for block, plain, chain in ((0, 1.0, None), (1, 1.0, 1.0), (2, 1.0, 2.0)):
        store(tmp_path, "autoregressive", block, plain, f"2026-01-01T0{block}:30:00+00:00")
        if chain is not None:
            store(tmp_path, "dflash", block, chain, f"2026-01-01T0{block}:10:00+00:00")
    frame = analyse(read_run(tmp_path)).drift
    assert frame["relative_rate"].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert frame["n"].tolist() == [1, 1, 1]
