"""Arms are compared only where everything but strategy and shape is equal; else the differing keys are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic

from ddbench.records import TELEMETRY, Cell
from reports.aggregate import Analysis, analyse
from reports.frames import read_run
from reports.guards.fingerprint import differing, fingerprint
from reports.points import Point, points_of

PLAN = synthetic.Plan(prompts=6)
Edit = Callable[[Cell], Cell]


def of_arm(**changes: Any) -> Edit:
    return lambda cell: replace(cell, arm=replace(cell.arm, **changes))


def of_flags(**changes: Any) -> Edit:
    return lambda cell: replace(cell, arm=replace(cell.arm, flags={**cell.arm.flags, **changes}))


def of_cell(**changes: Any) -> Edit:
    return lambda cell: replace(cell, **changes)


def write(run: Path, edit: Edit = lambda cell: cell) -> tuple[Cell, Cell]:
    """An autoregressive arm and a tree, which differs from it by ``edit`` too."""
    plain, tree = (
        synthetic.cell(PLAN, synthetic.arm(name, *shape), 1)
        for name, shape in (("autoregressive", (None, None, None)), ("ddtree", (2, 4, 8)))
    )
    cells = plain, edit(tree)
    for each in cells:
        synthetic.write_cell(run, PLAN, each)
    return cells


def with_status(run: Path, cell: Cell, **facts: object) -> None:
    path = run / "cells" / cell.cell_id / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def with_power_limit(run: Path, cell: Cell, *watts: float) -> None:
    rows = [
        {"cell_id": cell.cell_id, "time_s": float(index), "name": "gpu_power_limit_w", "value": value}
        for index, value in enumerate(watts)
    ]
    path = run / "cells" / cell.cell_id / "telemetry.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=TELEMETRY), path)


def verdict(run: Path) -> tuple[Analysis, dict[str, Any]]:
    made = analyse(read_run(run))
    (tree,) = (row for row in made.table.to_pylist() if row["strategy"] == "ddtree")
    return made, tree


def refused(run: Path) -> str:
    """What is said to differ; the speed-up must be null."""
    _, tree = verdict(run)
    assert tree["speedup_vs_autoregressive"] is None
    assert tree["throughput_ratio_vs_autoregressive"] is None
    assert tree["lossless_share"] is None
    prefix, suffix = "not compared with autoregressive: ", " differ"
    note = next(each for each in tree["baseline_note"].split("; ") if each.startswith(prefix))
    assert note.endswith(suffix)
    return str(note.removeprefix(prefix).removesuffix(suffix))


def test_equal_arms_are_compared(tmp_path: Path) -> None:
    write(tmp_path)
    assert verdict(tmp_path)[1]["speedup_vs_autoregressive"] > 0


FLAGS = {
    "attention_backend": "FLASHINFER",
    "block_size": 16,
    "async_scheduling": True,
    "cuda_graphs": False,
    "dtype": "bfloat16",
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "tensor_parallel": 2,
    "prefix_cache": True,
    "template": "chat",
    "thinking": True,
    "ignore_eos": True,
    "max_num_seqs": 7,
}


@pytest.mark.parametrize("name", FLAGS)
def test_every_engine_setting_is_in_it(name: str, tmp_path: Path) -> None:
    write(tmp_path, of_flags(**{name: FLAGS[name]}))
    assert refused(tmp_path) == name


EDITS = {
    "engine_version": of_arm(engine_version="2.0"),
    "host": of_arm(host="pro6000"),
    "target": of_arm(target="another"),
    "target_revision": of_arm(target_revision="other"),
    "prompts_hash": of_cell(prompts_hash="other"),
    "max_new_tokens": of_cell(max_new_tokens=9),
    "top_p": of_cell(top_p=0.9),
    "top_k": of_cell(top_k=5),
    "seed": of_cell(seed=5),
}


@pytest.mark.parametrize("name", EDITS)
def test_so_are_builds_prompts_and_sampling(name: str, tmp_path: Path) -> None:
    write(tmp_path, EDITS[name])
    assert refused(tmp_path) == name


def test_so_is_the_machine(tmp_path: Path) -> None:
    for name in ("gpu", "build"):
        run = tmp_path / name
        plain, tree = write(run)
        with_status(run, plain, **{name: "one"})
        with_status(run, tree, **{name: "another"})
        assert refused(run) == name


def test_so_is_the_power_limit_that_was_in_force(tmp_path: Path) -> None:
    for name, ours, same in (
        ("less", (450.0,), False),
        ("noise", (600.2, 599.9), True),
        ("change", (600.0, 450.0), False),
    ):
        run = tmp_path / name
        plain, tree = write(run)
        with_power_limit(run, plain, 600.0, 600.0)
        with_power_limit(run, tree, *ours)
        if same:
            assert verdict(run)[1]["power_limit_w"] == "600"
            assert verdict(run)[1]["speedup_vs_autoregressive"] > 0
        else:
            assert refused(run) == "power_limit_w"


def test_all_that_differs_is_named_and_the_nearest_arm_is_the_one_told_of(tmp_path: Path) -> None:
    plain, _ = write(tmp_path, of_flags(dtype="bfloat16", threads=9))
    assert refused(tmp_path) == "dtype, threads"
    nearer = replace(plain, arm=replace(plain.arm, flags={**plain.arm.flags, "dtype": "bfloat16"}))
    synthetic.write_cell(tmp_path, PLAN, nearer)
    assert refused(tmp_path) == "threads"


def test_strategy_shape_and_drafter_are_not_in_it(tmp_path: Path) -> None:
    write(tmp_path)
    plain, tree = points_of(read_run(tmp_path))
    assert plain.row["strategy"] != tree.row["strategy"]
    assert differing(plain, tree) == []
    assert plain.row["fingerprint"] == tree.row["fingerprint"]


def test_the_hash_is_equal_exactly_where_nothing_differs(tmp_path: Path) -> None:
    points: list[Point] = []
    for index, edit in enumerate([*EDITS.values(), *(of_flags(**{name: value}) for name, value in FLAGS.items())]):
        write(tmp_path / str(index), edit)
        points += points_of(read_run(tmp_path / str(index)))
    for one in points:
        for other in points:
            assert (fingerprint(one.row) == fingerprint(other.row)) == (not differing(one, other))
