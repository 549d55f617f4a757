"""Round times of random weights count although their text loops; and what their memory is held against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic

from ddbench.records import REQUESTS, Cell
from experiments.evidence.dummy_models import drafter_parameters, target_parameters
from experiments.validate import measure
from experiments.validate.sweeps import LOAD_DUMMY
from experiments.validate.verdict import Missing

PLAN = synthetic.Plan(prompts=4)
WEIGHTS_GIB = 2 * (target_parameters() + drafter_parameters()) / 2**30


@pytest.fixture
def stored(tmp_path: Path) -> dict[str, Path]:
    """The status files of a chain of 16 and a tree of as many, whose every request repeats a token; by strategy."""
    run = tmp_path / "rounds"
    synthetic.write_run(run, synthetic.Plan(shapes={}))
    flags = {"device": "cuda:1", "extra_args": LOAD_DUMMY}
    found = {}
    for strategy, depth, nodes in (("dflash", 15, None), ("ddtree", 15, 15)):
        cell = synthetic.cell(PLAN, synthetic.arm(strategy, None, depth, nodes, flags=flags), 8)
        synthetic.write_cell(run, PLAN, cell)
        _stuck(run, cell)
        found[strategy] = run / "cells" / cell.cell_id / "status.json"
    return found


def _stuck(run: Path, cell: Cell) -> None:
    path = run / "cells" / cell.cell_id / "requests.parquet"
    rows = [{**row, "output_token_ids": [7] * int(row["output_tokens"])} for row in pq.read_table(path).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), path)


def changed(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_looping_text_leaves_the_round_times(stored: dict[str, Path], tmp_path: Path) -> None:
    found = measure.of_rounds(tmp_path / "rounds")
    keys = ("round_ms.ddtree_16", "round_ms.dflash_16", "round_ratio.ddtree_16")
    tree, chain, ratio = (found[f"{key}.batch_8"] for key in keys)
    assert isinstance(tree, float), tree
    assert isinstance(chain, float)
    assert ratio == tree / chain


def test_a_cell_that_is_suspect_for_another_reason_is_not_judged(stored: dict[str, Path], tmp_path: Path) -> None:
    changed(stored["dflash"], status="suspect", reason="counts do not add up")
    found = measure.of_rounds(tmp_path / "rounds")
    why = Missing("the cell is suspect: counts do not add up")
    assert found["round_ms.dflash_16.batch_8"] == found["round_ratio.ddtree_16.batch_8"] == why
    assert isinstance(found["round_ms.ddtree_16.batch_8"], float)


def test_memory_is_held_against_a_plan_with_weights(stored: dict[str, Path], tmp_path: Path) -> None:
    """A stored plan that counted none gets them; the other has them already."""
    plans = {"dflash": {"weights": 0.0, "total": 7.0}, "ddtree": {"weights": WEIGHTS_GIB, "total": 7.0 + WEIGHTS_GIB}}
    for strategy, plan in plans.items():
        changed(stored[strategy], peak_memory_gib=27.0)
        stored[strategy].with_name("engine.json").write_text(json.dumps({"memory_predicted_gib": plan}))
    found = measure.of_rounds(tmp_path / "rounds")
    for arm in ("dflash_16", "ddtree_16"):
        assert found[f"beyond_plan_gib.{arm}"] == pytest.approx(20.0 - WEIGHTS_GIB)
