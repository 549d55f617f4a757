"""The whole report: pure, complete, and standing on every odd run."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import Plan, arm, cell, write_cell, write_run, write_status

from reports import build_report, load_run

TWO: dict = {"autoregressive": [(None, None, None)], "dflash": [(None, 3, None)], "ddtree": [(2, 3, 8), (4, 3, 8)]}


def contents(run: Path) -> dict[str, bytes]:
    """Every file of a report but the line with its time of building."""
    files = [run / "results.parquet", run / "results.csv", *sorted((run / "figures").glob("*.png"))]
    found = {path.name: path.read_bytes() for path in files}
    for name in ("report.md", "report.html"):
        text = (run / name).read_text()
        lines = [line for line in text.splitlines() if "Report built: " not in line]
        assert len(lines) == len(text.splitlines()) - 1
        found[name] = "\n".join(lines).encode()
    return found


@pytest.fixture(scope="module")
def built(small_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("outputs") / "synthetic" / "run"
    shutil.copytree(small_run, run)
    build_report(run)
    return run


def test_the_same_files_give_the_same_bytes(built: Path) -> None:
    before = contents(built)
    for name in ("results.parquet", "results.csv", "report.md", "report.html"):
        (built / name).unlink()
    (built / "figures" / "stale.png").write_bytes(b"from an older report")
    build_report(built)
    assert contents(built) == before


def test_every_figure_is_shown_and_exists(built: Path) -> None:
    text = (built / "report.md").read_text()
    linked = set(re.findall(r"\]\((figures/[^)]+)\)", text))
    assert linked == {f"figures/{path.name}" for path in (built / "figures").glob("*.png")}
    names = {Path(path).stem for path in linked}
    assert {"speedup_vs_batch_size", "acceptance_vs_nodes", "acceptance_by_depth", "round_time_split"} <= names
    for strategy in ("ddtree", "eagle"):
        for size in (1, 4):
            assert f"acceptance_heatmap_{strategy}_b{size}" in names
            assert f"tokens_per_s_heatmap_{strategy}_b{size}" in names


def test_what_the_page_says(built: Path) -> None:
    text = (built / "report.md").read_text()
    assert "SYNTHETIC DATA" in text
    head = text.split("## The answer")[0]
    assert "demonstrates the method and says nothing about your GPU" in head
    for phrase in (
        "hindsight-best",
        "## Best configuration by batch size",
        "## Won or lost by acceptance or by cost",
        "## What each tool would have printed",
        "## Provenance",
        "## Unsupported, failed and suspect points",
        "## Dropped grid points",
        "## How the numbers are defined",
        "## How to reproduce",
        "experiment=report run=",
    ):
        assert phrase in text
    assert "nan" not in text.lower().replace("provenance", "")
    assert "<NA>" not in text


def test_no_path_of_this_machine(built: Path) -> None:
    assert str(built.parent.parent) not in (built / "report.md").read_text()


def test_tables_are_whole(built: Path) -> None:
    """Every row of a table has as many cells as its head, so that it renders."""
    rows = [line for line in (built / "report.md").read_text().splitlines() if line.startswith("|")]
    blocks: list[int] = []
    for line in (built / "report.md").read_text().splitlines():
        if not line.startswith("|"):
            blocks = []
            continue
        blocks.append(len(re.findall(r"(?<!\\)\|", line)))
        assert blocks[0] == blocks[-1], line
    assert len(rows) > 30


def test_csv_and_parquet_agree(built: Path) -> None:
    table = pq.read_table(built / "results.parquet")
    frame = pd.read_csv(built / "results.csv")
    assert list(frame.columns) == table.column_names
    assert len(frame) == table.num_rows
    assert frame["cell_ids"].to_list() == [";".join(ids) for ids in table["cell_ids"].to_pylist()]
    plain = [value for value in table["acceptance_length"].to_pylist() if value is not None]
    assert frame["acceptance_length"].dropna().to_list() == pytest.approx(plain)


def test_losing_trees_are_named(tmp_path: Path) -> None:
    """A tree so wide that verification eats its gain is reported as lost, with its number."""
    shapes = {**TWO, "ddtree": [(2, 3, 400), (4, 3, 400)]}
    write_run(tmp_path / "x" / "run", Plan(shapes=shapes, batch_sizes=(8,), prompts=16))
    text = build_report(tmp_path / "x" / "run", figures=False).report.read_text()
    assert re.search(r"- ddtree w\d d3 n400 lost \(", text)
    assert "0 faster, 2 slower" in text
    assert "loses by cost, in spite of acceptance" in text


def page(tmp_path: Path, spoil: Callable[[Path, Plan], object], figures: bool = False, **plan: object) -> str:
    run = tmp_path / "synthetic" / "run"
    settings = Plan(**{"shapes": TWO, "batch_sizes": (1,), "prompts": 4, **plan})  # type: ignore[arg-type]
    write_run(run, settings)
    spoil(run, settings)
    paths = build_report(run, figures=figures)
    assert paths.results.is_file()
    text = paths.report.read_text()
    assert "<NA>" not in text
    return text


@pytest.mark.parametrize("status", ["unsupported", "failed", "suspect"])
def test_a_point_that_is_not_ok(tmp_path: Path, status: str) -> None:
    def spoil(run: Path, plan: Plan) -> None:
        each = cell(plan, arm("eagle", 4, 4, 16), 1)
        if status == "suspect":
            write_cell(run, plan, each)
        write_status(run, each, status, "the reason | with a bar\nand a second line")

    text = page(tmp_path, spoil, figures=status == "failed")
    row = next(
        line
        for line in text.splitlines()
        if line.startswith("| eagle w4 d4 n16") and status in line and "reason" in line
    )
    assert r"the reason \| with a bar and a second line" in row
    if status != "unsupported":
        assert "server.log" in row
    assert "eagle won" not in text


def test_suspect_points_are_never_fastest(tmp_path: Path) -> None:
    def spoil(run: Path, plan: Plan) -> None:
        for path in run.glob("cells/*/status.json"):
            if "strategy: ddtree" in (path.parent / "cell.yaml").read_text():
                path.write_text(json.dumps({**json.loads(path.read_text()), "status": "suspect", "reason": "looping"}))

    text = page(tmp_path, spoil)
    answer = text.split("## The answer")[1].split("## Before you believe it")[0]
    assert "ddtree" not in answer + text.split("## Results")[1].split("## Best configuration")[0]
    assert "2 points suspect (ddtree 2)" in text
    assert "looping" in text


def test_no_autoregressive_baseline(tmp_path: Path) -> None:
    text = page(tmp_path, lambda run, plan: None, figures=True, shapes={k: TWO[k] for k in ("dflash", "ddtree")})
    assert "No autoregressive arm was planned" in text


def test_only_autoregressive(tmp_path: Path) -> None:
    text = page(tmp_path, lambda run, plan: None, figures=True, shapes={"autoregressive": TWO["autoregressive"]})
    assert "No dflash arm was planned" in text
    assert "is the only strategy that was planned" in text
    assert "only autoregressive decoding was measured: nothing to compare." in text
    assert "was fastest" not in text


def test_one_prompt_has_no_interval(tmp_path: Path) -> None:
    text = page(tmp_path, lambda run, plan: None, figures=True, prompts=1)
    assert "n = 1" in text
    assert "no interval" in text


def test_no_rounds_files(tmp_path: Path) -> None:
    text = page(tmp_path, lambda run, plan: None, figures=True, with_rounds=False)
    assert "round_time_split" not in text


def test_two_temperatures_are_two_scenarios(tmp_path: Path) -> None:
    text = page(tmp_path, lambda run, plan: None, figures=True, temperatures=(0.0, 1.0))
    assert text.count("## Results") == 2
    answer = text.split("## The answer")[1].split("## Before you believe it")[0]
    assert answer.count("was fastest at") == 2
    assert len(set(re.findall(r"figures/(\S+)-speedup_vs_batch_size.png", text))) == 2


def test_everything_failed(tmp_path: Path) -> None:
    def spoil(run: Path, plan: Plan) -> None:
        for path in run.glob("cells/*/status.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "status": "failed", "reason": "no port"}))

    text = page(tmp_path, spoil, figures=True)
    assert "no point finished with status ok. There is no answer." in text
    assert text.count("no port") == 5  # four points, and the first page once


def test_unfinished_and_unreadable_cells(tmp_path: Path) -> None:
    def spoil(run: Path, plan: Plan) -> None:
        folders = sorted((run / "cells").iterdir())
        (folders[0] / "status.json").unlink()
        (folders[1] / "status.json").write_text('{"status": "o')  # killed while writing
        (folders[2] / "cell.yaml").write_text("arm: [")
        (run / "cells" / "stray").mkdir()

    text = page(tmp_path, spoil)
    assert "2 cells have no final status" in text
    assert "status.json cannot be read" in text
    assert "cell.yaml cannot be read" in text


def test_requests_lost_after_ok(tmp_path: Path) -> None:
    def spoil(run: Path, plan: Plan) -> None:
        sorted((run / "cells").iterdir())[0].joinpath("requests.parquet").unlink()

    assert "requests.parquet is missing" in page(tmp_path, spoil)


def test_dropped_points_are_listed_by_reason(tmp_path: Path) -> None:
    reason = "nodes 2 < depth 3 with a forced spine"

    def spoil(run: Path, plan: Plan) -> None:
        point = {"strategy": "ddtree", "depth": 3, "nodes": 2, "batch_size": 1, "temperature": 0.0, "reason": reason}
        (run / "dropped.json").write_text(json.dumps([{**point, "width": width} for width in (2, None)]))

    text = page(tmp_path, spoil)
    row = next(line for line in text.splitlines() if reason in line)
    assert "2, null" in row


def test_an_empty_run(tmp_path: Path) -> None:
    run = tmp_path / "synthetic" / "run"
    run.mkdir(parents=True)
    paths = build_report(run)
    text = paths.report.read_text()
    assert "Cells: none; 0 points." in text
    assert paths.figures == ()
    assert pq.read_table(paths.results).num_rows == 0


def test_a_chain_of_no_stated_depth(tmp_path: Path) -> None:
    shapes = {**TWO, "dflash": [(None, 3, None)]}

    def spoil(run: Path, plan: Plan) -> None:
        whole = cell(plan, arm("dflash", None, 7, None), 1)
        write_cell(run, plan, whole)
        path = run / "cells" / whole.cell_id / "cell.yaml"
        path.write_text(path.read_text().replace("depth: 7", "depth: null"))
        requests = path.with_name("requests.parquet")
        fixed = cell(plan, arm("dflash", None, None, None), 1).cell_id
        table = pq.read_table(requests)
        column = table.schema.get_field_index("cell_id")
        pq.write_table(table.set_column(column, "cell_id", [[fixed] * len(table)]), requests)

    assert "the chain dflash dmax" in page(tmp_path, spoil, shapes=shapes)


@pytest.mark.parametrize("name", ["requests", "rounds"])
def test_a_table_that_was_cut_costs_its_cell_alone(small_run: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / "synthetic" / "run"
    shutil.copytree(small_run, run)
    path = sorted((run / "cells").glob(f"*/{name}.parquet"))[0]
    cell = path.parent
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    page = build_report(run, figures=False).report.read_text()
    assert f"cells/{cell.name}/{name}.parquet cannot be read" in page
    frames = load_run(run)
    assert frames.cells.set_index("cell_id").loc[cell.name, "status"] == "failed"
    assert cell.name not in set(frames.requests["cell_id"])


@pytest.mark.parametrize("fault", ["no ids", "errors"])
def test_what_nobody_could_look_at_is_said_at_the_top(small_run: Path, tmp_path: Path, fault: str) -> None:
    run = tmp_path / "synthetic" / "run"
    shutil.copytree(small_run, run)
    frames = load_run(run)
    cell_id = frames.cells[(frames.cells["strategy"] == "ddtree")]["cell_id"].iloc[0]
    path = run / "cells" / str(cell_id) / "requests.parquet"
    table = pq.read_table(path)
    name = "output_token_ids" if fault == "no ids" else "error"
    index = table.schema.get_field_index(name)
    kind = table.schema.field(name).type
    values = pa.nulls(len(table), kind) if fault == "no ids" else pa.array(["connection lost"] * len(table), kind)
    pq.write_table(table.set_column(index, table.schema.field(name), values), path)
    front = build_report(run, figures=False).report.read_text().split("## Before you believe it")[1].split("\n## ")[0]
    assert ("could not be looked at" if fault == "no ids" else "gave no speed") in front
