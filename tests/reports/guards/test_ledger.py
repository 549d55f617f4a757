"""The ledger: first differing index, the baseline's gap there, and the autoregressive arm as its own control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from synthetic import Plan, arm, cell, write_status

from ddbench.records import REQUESTS, Arm
from reports.aggregate import Analysis, analyse
from reports.frames import read_run
from reports.guards.ledger import first_divergence

PLAIN = arm("autoregressive", None, None, None)
TREE = arm("ddtree", 2, 4, 4)
IDS = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8], "c": [9, 10, 11]}
GAPS = {"a": [2.0, 1.0, 0.0005, 3.0], "b": [2.0, 4.0, 1.0, 1.0], "c": None}


def write(run: Path, system: Arm, ids: dict[str, list[int]], block: int = 0, **more: Any) -> None:
    """A cell with one request a prompt; ``gaps`` by prompt, ``temperature`` and ``repeat`` may be given."""
    gaps, repeat = more.pop("gaps", {}), more.pop("repeat", 0)
    each = cell(Plan(prompts=len(ids)), system, 1, block=block, **more)
    rows = [
        {
            **{"cell_id": each.cell_id, "block": block, "prompt_id": prompt, "turn": 0, "repeat": repeat},
            **{"output_tokens": len(tokens), "rounds": 0 if system is PLAIN else 2, "accepted": 0, "accepted_raw": 0},
            **{"start_s": 0.0, "ttft_s": 0.1, "latency_s": 1.0, "output_token_ids": tokens},
            "output_gaps": gaps.get(prompt),
        }
        for prompt, tokens in ids.items()
    ]
    folder = write_status(run, each, "ok")
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), folder / "requests.parquet")


def analysis(run: Path) -> tuple[Analysis, dict[str, Any], dict[str, Any]]:
    """The analysis, and the rows of the autoregressive arm and of the tree."""
    made = analyse(read_run(run))
    rows = {row["strategy"]: row for row in made.table.to_pylist()}
    return made, rows["autoregressive"], rows["ddtree"]


def entries(made: Analysis, point: dict[str, Any]) -> list[tuple[Any, ...]]:
    own = made.ledger[made.ledger["point_id"] == point["point_id"]]
    columns = own[["prompt_id", "divergence", "baseline_tokens", "tokens", "gap"]]
    return [tuple(None if pd.isna(v) else v for v in row) for row in columns.itertuples(index=False, name=None)]


def test_where_an_arm_leaves_the_target_and_how_near_a_tie_that_was(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, IDS, gaps=GAPS)
    write(tmp_path, TREE, {"a": [1, 2, 9, 9], "b": [5, 0, 7, 8], "c": [9, 10, 11, 12]})
    made, plain, tree = analysis(tmp_path)
    assert entries(made, tree) == [("a", 2, 4, 4, 0.0005000000237487257), ("b", 1, 4, 4, 4.0), ("c", 3, 3, 4, None)]
    assert tree["lossless_n"] == 3
    assert tree["lossless_share"] == 0.0
    assert tree["first_divergence_median"] == 2.0
    assert tree["tie_share"] == 0.5  # of two known gaps, 0.0005 is a tie in float32 and 4.0 is none
    assert tree["control_share"] is None  # the baseline answered once
    assert entries(made, plain) == []
    assert plain["lossless_n"] == 0


def test_a_lossless_arm_has_no_divergence(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, IDS, gaps=GAPS)
    write(tmp_path, TREE, IDS)
    made, _, tree = analysis(tmp_path)
    assert [row[1] for row in entries(made, tree)] == [None, None, None]
    assert (tree["lossless_n"], tree["lossless_share"]) == (3, 1.0)
    assert (tree["first_divergence_median"], tree["tie_share"]) == (None, None)


def test_the_autoregressive_arm_is_its_own_control(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, IDS, gaps=GAPS)
    write(tmp_path, PLAIN, {**IDS, "b": [5, 6, 7, 0]}, block=1)
    write(tmp_path, TREE, IDS)
    write(tmp_path, TREE, {**IDS, "a": [0]}, block=1)
    made, plain, tree = analysis(tmp_path)
    assert entries(made, plain) == [("a", None, 4, 4, None), ("b", 3, 4, 4, 1.0), ("c", None, 3, 3, None)]
    assert plain["control_share"] == tree["control_share"] == 2 / 3
    assert tree["lossless_n"] == 6
    assert tree["lossless_share"] == 5 / 6


def test_what_is_a_tie_depends_on_the_precision(tmp_path: Path) -> None:
    for dtype, share in (("float32", 0.0), ("bfloat16", 1.0), ("float8", None)):
        run = tmp_path / dtype
        flags = {**PLAIN.flags, "dtype": dtype}
        write(run, replace(PLAIN, flags=flags), {"a": [1, 2]}, gaps={"a": [1.0, 0.25]})
        write(run, replace(TREE, flags=flags), {"a": [1, 3]})
        assert analysis(run)[2]["tie_share"] == share


def test_sampled_text_is_not_in_the_ledger(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, IDS, temperature=1.0)
    write(tmp_path, TREE, IDS, temperature=1.0)
    made, _, tree = analysis(tmp_path)
    assert made.ledger.empty
    assert tree["lossless_n"] is None


def test_a_run_without_the_column_loads_and_has_no_gaps(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, IDS, gaps=GAPS)
    write(tmp_path, TREE, {**IDS, "a": [1, 0, 3, 4]})
    for path in tmp_path.glob("cells/*/requests.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["output_gaps"]), path)
    made, _, tree = analysis(tmp_path)
    assert entries(made, tree)[0] == ("a", 1, 4, 4, None)
    assert tree["tie_share"] is None


def test_a_gap_that_was_not_gathered_is_null(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, IDS, gaps={"a": [2.0, None, 1.0, 1.0], "b": [2.0]})
    write(tmp_path, TREE, {"a": [1, 0], "b": [5, 0], "c": [9]})
    made, _, tree = analysis(tmp_path)
    assert [row[4] for row in entries(made, tree)] == [None, None, None]


def test_the_synthetic_run_is_lossless_on_every_line(small_run: Path, small_plan: Plan) -> None:
    made = analyse(read_run(small_run))
    arms = sum(len(shapes) for name, shapes in small_plan.shapes.items() if name != "autoregressive")
    assert len(made.ledger) == small_plan.prompts * arms * len(small_plan.batch_sizes)
    assert made.ledger["divergence"].isna().all()
    assert made.frame["control_share"].isna().all()


TOKENS = st.lists(st.integers(0, 1), max_size=6)


@given(TOKENS, TOKENS)
def test_first_divergence(ours: Sequence[int], theirs: Sequence[int]) -> None:
    index = first_divergence(ours, theirs)
    if index is None:
        assert ours == theirs
        return
    assert ours[:index] == theirs[:index]
    assert ours[index : index + 1] != theirs[index : index + 1]


def test_the_first_answer_is_that_of_the_first_block_however_it_is_stored(tmp_path: Path) -> None:
    """Rows of a later repeat stand before those of the first one."""
    rows = {0: [1, 2, 3], 1: [1, 2, 9]}
    each = cell(Plan(prompts=1), PLAIN, 1)
    stored = [
        {
            **{"cell_id": each.cell_id, "block": 0, "prompt_id": "a", "turn": 0, "repeat": repeat},
            **{"output_tokens": 3, "rounds": 0, "accepted": 0, "accepted_raw": 0},
            **{"start_s": 0.0, "ttft_s": 0.1, "latency_s": 1.0, "output_token_ids": rows[repeat]},
        }
        for repeat in (1, 0)
    ]
    folder = write_status(tmp_path, each, "ok")
    pq.write_table(pa.Table.from_pylist(stored, schema=REQUESTS), folder / "requests.parquet")
    write(tmp_path, TREE, {"a": [1, 2, 3]})
    _, plain, tree = analysis(tmp_path)
    assert tree["lossless_share"] == 1.0
    assert plain["lossless_share"] == plain["control_share"] == 0.0
