"""What the top of the page says of a run that is incomplete, attached, open loop, or unsupported in part."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import Plan, arm, cell, write_cell, write_run, write_status

from ddbench.records import Arm, Cell
from experiments.plan import Planned
from experiments.store import RunFolder
from reports import build_report, load_run
from reports.tracking.cell_run import _name

PLAN = Plan(shapes={"autoregressive": [(None, None, None)], "dflash": [(None, 3, None)]}, batch_sizes=(1,), prompts=4)
AUTOREGRESSIVE, CHAIN = arm("autoregressive", None, None, None), arm("dflash", None, 3, None)
TREES = [cell(PLAN, arm("ddtree", width, 3, 8), 1) for width in (2, 4, None)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of autoregressive decoding and a chain, that stored no plan."""
    folder = tmp_path / "synthetic" / "a-run"
    write_run(folder, PLAN)
    return folder


def built(run: Path, figures: bool = False) -> str:
    text = build_report(run, figures=figures).report.read_text()
    assert "<NA>" not in text
    return text


def top(text: str) -> str:
    return text.partition("## Results")[0]


def open_with(run: Path, *cells: Cell) -> None:
    RunFolder(run).open({"run_id": "a-run"}, None, (), tuple(Planned(each, None) for each in cells))


def stored_cells() -> list[Cell]:
    return [cell(PLAN, each, 1) for each in (AUTOREGRESSIVE, CHAIN)]


def flagged(system: Arm, **flags: Any) -> Arm:
    return replace(system, flags={**system.flags, **flags})


def test_a_run_without_a_stored_plan_says_nothing(run: Path) -> None:
    assert "planned" not in built(run)


def test_a_whole_run_says_nothing(run: Path) -> None:
    open_with(run, *stored_cells())
    assert (run / "planned").is_dir()
    assert "planned cells" not in built(run)


def test_what_was_not_run_is_said_first_and_listed(run: Path) -> None:
    eagle = cell(PLAN, arm("eagle", 1, 4, 4), 1)
    open_with(run, *stored_cells(), *TREES, eagle)
    text = built(run)
    assert "**4 of 6 planned cells were not run: eagle 1, ddtree 3.**" in top(text)
    assert "`run_id=a-run`" in top(text)
    listed = text.partition("## Planned cells that were not run")[2].partition("## ")[0]
    row = next(line for line in listed.splitlines() if line.startswith("| ddtree"))
    assert {each.strip() for each in row.split("|")} >= {"2, 4, null", "3", "8"}


def test_the_plans_of_one_run_add_up(run: Path) -> None:
    """Two processes with a plan each, one of them opening the folder twice: neither loses the other's."""
    open_with(run, *stored_cells(), TREES[0])
    open_with(run, TREES[0], TREES[1])
    open_with(run, *stored_cells(), TREES[0])
    assert len(list((run / "planned").iterdir())) == 2
    assert "2 of 4 planned cells were not run: ddtree 2." in built(run)
    write_cell(run, PLAN, TREES[0])
    write_status(run, TREES[1], "failed", "no memory")  # it was run
    assert "planned cells" not in built(run)


def test_a_damaged_plan_is_named(run: Path) -> None:
    open_with(run, *stored_cells(), TREES[0])
    (run / "planned" / "0.json").write_text("[{")
    text = built(run)
    assert "1 of 3 planned cells" in top(text)
    assert "planned/0.json cannot be read" in text


def test_the_same_bytes_with_a_plan(run: Path) -> None:
    open_with(run, *stored_cells(), *TREES)
    first, second = (
        [line for line in built(run).splitlines() if not line.startswith("Report built: ")] for _ in range(2)
    )
    assert first == second


def test_shapes_that_cannot_be_run_beside_one_that_can(run: Path) -> None:
    write_cell(run, PLAN, cell(PLAN, arm("eagle", 1, 4, 4), 1))
    for size in (1, 4):
        for width in (2, 4):
            write_status(run, cell(PLAN, arm("eagle", width, 4, 16), size), "unsupported", "no EAGLE trees")
    line = "> **2 of 3 eagle shapes are unsupported on reference**, and nothing else was run instead: no EAGLE trees."
    assert line in top(built(run)).splitlines()


def test_a_strategy_with_cells_to_come_is_not_called_unsupported(run: Path) -> None:
    refused, to_come = cell(PLAN, arm("eagle", 4, 4, 16), 1), cell(PLAN, arm("eagle", 1, 4, 4), 1)
    write_status(run, refused, "unsupported", "no EAGLE trees")
    assert "**eagle is unsupported on reference**" in top(built(run))
    open_with(run, *stored_cells(), refused, to_come)
    text = top(built(run))
    assert "**1 of 2 eagle shapes is unsupported on reference**" in text
    assert "**eagle is unsupported" not in text


def test_a_policy_is_a_shape_of_its_own(run: Path) -> None:
    """It has the depth and the nodes of a fixed tree."""
    tree = arm("ddtree", None, 4, 16)
    write_cell(run, PLAN, cell(PLAN, tree, 1))
    write_status(run, cell(PLAN, replace(tree, policy="caddtree"), 1), "unsupported", "no policies")
    refused, to_come = (cell(PLAN, replace(tree, policy=name), 1) for name in ("caddtree", "cost_optimal"))
    assert "shapes is unsupported on reference**, and nothing else was run instead: no policies" in top(built(run))
    assert len({_name(each) for each in (cell(PLAN, tree, 1), refused, to_come)}) == 3


def test_a_temperature_that_cannot_be_run_is_counted_in_cells(run: Path) -> None:
    for number in range(4):
        write_status(run, cell(PLAN, CHAIN, 1, 0.5 + number), "unsupported", f"no sampling {number}")
    text = top(built(run))
    assert "**4 of 5 dflash cells are unsupported on reference**" in text
    assert "no sampling 0; no sampling 1; and 2 more reasons" in text


def test_an_attached_server_is_believed_and_its_flags_are_not_known(tmp_path: Path) -> None:
    run = tmp_path / "synthetic" / "run"
    write_run(run, replace(PLAN, shapes={}))
    for system in (AUTOREGRESSIVE, CHAIN):
        write_cell(run, PLAN, cell(PLAN, flagged(system, attached=True, block_size=None, thinking=None), 1))
    text = built(run)
    line = next(line for line in top(text).splitlines() if "engine.url" in line)
    assert line.startswith("> **autoregressive (attached), dflash d3 (attached): measured on a server that was already")
    assert "Strategy, shape, model and settings of that server are believed, not checked." in line
    assert "Its flags are not known" in line
    flags = next(row for row in text.splitlines() if row.startswith("| Flags"))
    assert '"block_size":"not known"' in flags
    assert '"thinking":null' in flags  # the client's own
    assert "attached servers: that the autoregressive arm has the same flags is not known" in text


def test_a_rivals_trees_are_named_and_not_compared_across_overlap(tmp_path: Path) -> None:
    """A branch that forces overlap scheduling off on its trees, beside arms that have it; then all without."""
    tree = replace(arm("ddtree", 2, 3, 8), engine_version=AUTOREGRESSIVE.engine_version)
    for name, overlap in (("apart", True), ("alike", False)):
        run = tmp_path / "synthetic" / name
        write_run(run, replace(PLAN, shapes={}))
        for system, own in ((AUTOREGRESSIVE, overlap), (CHAIN, overlap), (tree, False)):
            write_cell(run, PLAN, cell(PLAN, flagged(system, branch="theirs", overlap=own), 1))
        text = built(run)
        line = next(line for line in top(text).splitlines() if "somebody else's code" in line)
        assert line.startswith("> **ddtree w2 d3 n8 (rival: theirs)")
        assert ("without overlap scheduling, which the branch forces on them" in line) == overlap
        assert ("## Refused comparisons" in text) == overlap
        assert "autoregressive (rival" not in text


def test_a_server_of_our_own_has_no_such_line(run: Path) -> None:
    write_cell(run, PLAN, cell(PLAN, flagged(CHAIN, block_size=None), 1))
    text = built(run)
    assert "engine.url" not in text
    assert "not known" not in text


def test_an_open_loop_is_named_wherever_its_numbers_are(tmp_path: Path) -> None:
    run = tmp_path / "synthetic" / "run"
    write_run(run, replace(PLAN, shapes={}))
    for system in (AUTOREGRESSIVE, CHAIN):
        write_cell(run, PLAN, cell(PLAN, flagged(system, request_rate=2.0), 4))
    text = built(run, figures=True)
    assert "> **Requests arrived at random, 2 a second (`load=open`).** The batch size is a cap" in top(text)
    assert "aggregate tokens/s is then set by the arrivals and is no speed of the engine" in top(text)
    assert "open loop, 2 requests/s. Speed is decode tokens/s per user" in text
    assert "Aggregate tokens/s (set by arrivals)" in text
    captions = [line for line in text.splitlines() if line.startswith("*") and line.endswith("*") and line[1] != "*"]
    captions = [line for line in captions if not line.startswith("*One mark a cell")]  # telemetry, of the whole run
    assert captions
    assert all("Open loop: requests arrived at random, 2 a second" in caption for caption in captions)


def test_open_and_closed_loops_answer_different_questions(run: Path) -> None:
    closed = load_run(run).results["scenario"].unique().tolist()
    for system in (AUTOREGRESSIVE, CHAIN):
        write_cell(run, PLAN, cell(PLAN, flagged(system, request_rate=0.5), 1))
    results = load_run(run).results
    assert len(results["scenario"].unique()) == 2
    assert set(closed) < set(results["scenario"])  # that of the closed loop is as it was
    assert "Where the title says open loop, requests arrived at random, 0.5 a second" in top(built(run, figures=True))
    assert list((run / "figures").glob("r0.5-*speedup_vs_batch_size.png"))


def test_what_is_stored_of_a_plan_is_small(run: Path) -> None:
    open_with(run, TREES[2])
    (path,) = (run / "planned").iterdir()
    assert json.loads(path.read_text()) == [
        {
            "cell_id": TREES[2].cell_id,
            "engine": "reference",
            "strategy": "ddtree",
            "width": None,
            "depth": 3,
            "nodes": 8,
            "batch_size": 1,
            "temperature": 0.0,
            "block": 0,
        }
    ]
