"""Random weights loop under every arm: their text is not judged, and what else is wrong with them still is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic

from ddbench.records import REQUESTS, Cell
from reports.aggregate import analyse
from reports.choose import labelled
from reports.frames import read_run
from reports.guards.random_weights import has_random_weights
from reports.sections import degeneracy

PLAN = synthetic.Plan(prompts=4)
STRATEGIES = (("autoregressive", None, None, None), ("dflash", None, 7, None), ("ddtree", None, 7, 8))


def loops(run: Path, extra_args: list[str]) -> list[Cell]:
    """A run in which every request of every arm repeats one token."""
    synthetic.write_run(run, synthetic.Plan(shapes={}))
    cells = []
    for strategy, *shape in STRATEGIES:
        system = synthetic.arm(strategy, *shape, flags={"device": "cuda:1", "extra_args": extra_args})
        cells.append(synthetic.cell(PLAN, system, 1))
        synthetic.write_cell(run, PLAN, cells[-1])
        path = run / "cells" / cells[-1].cell_id / "requests.parquet"
        rows = [{**row, "output_token_ids": [7] * int(row["output_tokens"])} for row in pq.read_table(path).to_pylist()]
        pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), path)
    return cells


def test_text_of_random_weights_is_not_judged_and_the_page_says_so(tmp_path: Path) -> None:
    loops(tmp_path / "made_up", ["--load-format", "dummy"])
    frame = labelled(analyse(read_run(tmp_path / "made_up")).frame)
    assert (frame["status"] == "ok").all(), frame["reason"].tolist()
    assert frame["degenerate_reason"].isna().all()
    assert (frame["distinct_4gram_share"] < 0.2).all()  # what it is stays told
    page = "\n".join(degeneracy.section(frame))
    assert "3 points not judged: random weights (`--load-format dummy`)." in page

    loops(tmp_path / "trained", [])
    frame = labelled(analyse(read_run(tmp_path / "trained")).frame)
    assert (frame["status"] == "suspect").all()
    assert frame["reason"].str.contains("4 of 4 requests repeat themselves").all()
    assert "random weights" not in "\n".join(degeneracy.section(frame))


def test_random_weights_are_suspect_for_other_reasons(tmp_path: Path) -> None:
    cell = loops(tmp_path / "run", ["--load-format=dummy"])[1]
    path = tmp_path / "run" / "cells" / cell.cell_id / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "suspect", "reason": "counts do not add up"}))
    frame = analyse(read_run(tmp_path / "run")).frame.set_index("strategy")
    assert frame["status"].to_dict() == {"autoregressive": "ok", "dflash": "suspect", "ddtree": "ok"}
    assert frame.loc["dflash", "reason"] == "counts do not add up"


@pytest.mark.parametrize(
    ("words", "random"),
    [
        (["--load-format", "dummy"], True),
        (["--seed", "1", "--load_format=dummy"], True),
        (["--load-format", "dummy", "--load-format", "safetensors"], False),
        (["--load-format"], False),
        (["--tokenizer", "dummy"], False),
        ([], False),
        (None, False),
    ],
)
def test_which_flags_say_so(words: list[str] | None, random: bool) -> None:
    flags: dict[str, Any] = {} if words is None else {"extra_args": words}
    assert has_random_weights(json.dumps(flags)) is random
    assert not has_random_weights(None)
