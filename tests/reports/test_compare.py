"""Two runs side by side: what is paired, what differs, what the ratios are, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from synthetic import Plan, arm, cell, write_cell, write_run, write_status

from ddbench.errors import ConfigError
from ddbench.records import Arm
from experiments import report
from reports.aggregate import analyse
from reports.choose import labelled
from reports.compare import build_comparison
from reports.compare.match import Matched, match
from reports.compare.measures import _quotient
from reports.frames import read_run
from reports.statistics import Estimate

PLAN = Plan(shapes={}, batch_sizes=(1,), prompts=8)
SYSTEMS = (arm("autoregressive", None, None, None), arm("dflash", None, 3, None), arm("ddtree", 2, 3, 8))
NEWER = {"engine_version": "0.2.0", "host": "another", "flags": {"device": "cpu", "dtype": "float32", "threads": 4}}


def write(run: Path, systems: tuple[Arm, ...], slower: float = 1.0, plan: Plan = PLAN, **changes: Any) -> Path:
    """A run of some arms. ``slower`` stretches every decode time; ``changes`` are to the arms."""
    write_run(run, plan)
    for system in systems:
        each = cell(plan, system, 1)
        write_cell(run, plan, each)
        changed = replace(each, arm=replace(each.arm, **changes))
        old, new = run / "cells" / each.cell_id, write_status(run, changed, "ok")
        for name in ("requests", "rounds", "telemetry"):
            path = old / f"{name}.parquet"
            if path.is_file():
                pq.write_table(_moved(pq.read_table(path), changed.cell_id, slower), new / f"{name}.parquet")
            if changes:
                path.unlink(missing_ok=True)
        if changes:
            for path in old.iterdir():
                path.unlink()
            old.rmdir()
    return run


def _moved(table: pa.Table, cell_id: str, slower: float) -> pa.Table:
    table = table.set_column(table.schema.get_field_index("cell_id"), "cell_id", [[cell_id] * len(table)])
    if "latency_s" in table.column_names:
        decode = pc.subtract(table["latency_s"], table["ttft_s"])
        latency = pc.add(table["ttft_s"], pc.multiply(decode, slower))
        table = table.set_column(table.schema.get_field_index("latency_s"), "latency_s", latency)
    return table


def matched(ours: Path, theirs: Path) -> Matched:
    return match(analyse(read_run(ours)).points, analyse(read_run(theirs)).points)


def rows_of(ours: Path, theirs: Path) -> list[dict[str, Any]]:
    return pq.read_table(build_comparison(ours, theirs).results).to_pylist()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same arms on another version, host and thread count, a quarter slower to decode."""
    folder = tmp_path_factory.mktemp("outputs") / "synthetic"
    return write(folder / "old", SYSTEMS), write(folder / "new", SYSTEMS, 1.25, **NEWER)


def test_points_are_matched_by_everything_but_what_differs(two: tuple[Path, Path]) -> None:
    found = matched(*two)
    assert len(found.pairs) == 3
    assert not found.only_ours
    assert not found.only_theirs
    for pair in found.pairs:
        assert pair.ours.row["strategy"] == pair.theirs.row["strategy"]
        assert pair.differs == {
            "engine_version": ("0.1.0", "0.2.0"),
            "host": ("local", "another"),
            "flags.threads": (2, 4),
        }


def test_the_ratio_is_the_planted_one(two: tuple[Path, Path]) -> None:
    for row in rows_of(*two):
        assert row["decode_speed_ratio"] == pytest.approx(1.25)
        assert row["decode_speed_ratio_low"] == pytest.approx(1.25)  # the same for every prompt: no width
        assert row["round_time_ratio"] == pytest.approx(0.8)
        assert row["verdict"] == "faster"
        assert row["same_output_share"] == 1.0
        assert row["prompts"] == 8
        assert row["method"].startswith("paired bootstrap over prompts")
        if row["strategy"] != "autoregressive":
            assert row["acceptance_ratio"] == pytest.approx(1.0)
            product = row["acceptance_ratio"] / row["round_time_ratio"]
            assert row["decode_speed_ratio"] == pytest.approx(product)


def test_the_other_way_round_is_the_inverse(two: tuple[Path, Path]) -> None:
    here, there = ({row["strategy"]: row for row in rows_of(*pair)} for pair in (two, two[::-1]))
    for strategy, row in here.items():
        other = there[strategy]
        assert other["decode_speed_ratio"] == pytest.approx(1 / row["decode_speed_ratio"])
        assert other["verdict"] == "slower"


def test_the_page(two: tuple[Path, Path]) -> None:
    paths = build_comparison(*two)
    assert paths.report == two[0] / "compare-new.md"
    text = paths.report.read_text()
    assert text.startswith("# ddbench comparison: synthetic/old against synthetic/new\n")
    assert "SYNTHETIC DATA" in text
    assert "Of 3 points that both runs have, synthetic/old was faster at 3" in text
    assert "The runs were not interleaved" in text
    assert re.search(r"\| `flags.threads` +\| 2 +\| 4 +\| 3 of 3", text)
    assert "1.25 " in text
    html = paths.report.with_suffix(".html").read_text()
    assert "<h1" in html
    assert "nan" not in text.lower().replace("provenance", "")
    first = [line for line in text.splitlines() if not line.startswith("Report built: ")]
    again = build_comparison(*two).report.read_text().splitlines()
    assert first == [line for line in again if not line.startswith("Report built: ")]


def test_points_of_one_run_are_listed(tmp_path: Path) -> None:
    ours = write(tmp_path / "x" / "a", SYSTEMS)
    theirs = write(tmp_path / "x" / "b", (SYSTEMS[0], arm("dflash", None, 7, None)))
    found = matched(ours, theirs)
    assert [pair.ours.row["strategy"] for pair in found.pairs] == ["autoregressive"]
    assert [point.row["strategy"] for point in found.only_ours] == ["dflash", "ddtree"]
    assert [point.row["depth"] for point in found.only_theirs] == [7]
    alone = build_comparison(ours, theirs).report.read_text().split("## Points of one run only")[1]
    rows = [line.split("|")[1:3] for line in alone.splitlines() if line.startswith("| x/")]
    assert [[part.strip() for part in row] for row in rows] == [
        ["x/a", "dflash d3"],
        ["x/a", "ddtree w2 d3 n8"],
        ["x/b", "dflash d7"],
    ]


def test_several_arms_of_one_shape_are_told_apart_by_what_differs_within_a_run(tmp_path: Path) -> None:
    """Two drafters in each run, another engine version besides: each drafter finds itself."""
    drafters = tuple(arm("dflash", None, 3, None, drafter=name) for name in ("first", "second"))
    ours = write(tmp_path / "x" / "a", drafters)
    theirs = write(tmp_path / "x" / "b", drafters[::-1], engine_version="0.2.0")
    pairs = matched(ours, theirs).pairs
    assert sorted((p.ours.row["drafter"], p.theirs.row["drafter"]) for p in pairs) == [
        ("first", "first"),
        ("second", "second"),
    ]


def test_policies_of_two_cost_files_are_told_apart(tmp_path: Path) -> None:
    """In one run each finds itself and its label names its costs; between two runs the costs are what differs."""
    first, second = (arm("ddtree", None, 3, 8, policy="cost_optimal", cost=name * 8) for name in ("aa", "bb"))
    tree = arm("ddtree", None, 3, 8)
    ours = write(tmp_path / "x" / "a", (tree, first, second))
    theirs = write(tmp_path / "x" / "b", (tree, second, first), engine_version="0.2.0")
    pairs = [pair for pair in matched(ours, theirs).pairs if pair.ours.row["policy"]]
    assert sorted((p.ours.row["cost"], p.theirs.row["cost"]) for p in pairs) == [("aa" * 8,) * 2, ("bb" * 8,) * 2]
    labels = set(labelled(analyse(read_run(ours)).frame)["label"])
    assert len(labels) == 3
    assert sum(label.endswith(" cost aaaaaaaa") for label in labels) == 1
    alone = matched(write(tmp_path / "x" / "c", (tree, first)), write(tmp_path / "x" / "d", (tree, second)))
    told = {pair.ours.row["policy"]: pair.differs for pair in alone.pairs}
    assert told["cost_optimal"]["cost"] == ("aa" * 8, "bb" * 8)
    assert "cost" not in told[None]
    assert not any(" cost " in label for label in labelled(analyse(read_run(tmp_path / "x" / "c")).frame)["label"])


def test_what_stays_ambiguous_is_no_pair(tmp_path: Path) -> None:
    ours = write(tmp_path / "x" / "a", (arm("dflash", None, 3, None),))
    both = tuple(arm("dflash", None, 3, None, drafter=name) for name in ("first", "second"))
    found = matched(ours, write(tmp_path / "x" / "b", both))
    assert not found.pairs
    assert (len(found.only_ours), len(found.only_theirs)) == (1, 2)
    assert "no point in common" in build_comparison(ours, tmp_path / "x" / "b").report.read_text()


def test_other_prompts_are_compared_unpaired(tmp_path: Path) -> None:
    """The interval is wider than the paired one, holds the ratio, and says what it is."""
    ours = write(tmp_path / "x" / "a", SYSTEMS)
    theirs = write(tmp_path / "x" / "b", SYSTEMS, 1.25)
    for path in theirs.glob("cells/*/cell.yaml"):
        path.write_text(path.read_text().replace("prompts_hash: synthetic", "prompts_hash: others"))
    _rename(theirs)
    for row in rows_of(ours, theirs):
        assert row["method"] == "unpaired, other prompts"
        assert row["same_output_share"] is None
        assert row["decode_speed_ratio"] == pytest.approx(1.25)
        assert row["decode_speed_ratio_low"] < 1.24 < 1.26 < row["decode_speed_ratio_high"]
        assert row["differs"] == ["prompts_hash"]


def test_square_and_add_of_equal_widths(tmp_path: Path) -> None:
    """Two equal arms: the log interval of the ratio is sqrt(2) times that of one arm."""
    from reports.compare.measures import _quotient
    from reports.statistics import Estimate

    one = Estimate(10.0, 8.0, 12.5, 9)  # log(10 / 8) = log(12.5 / 10)
    found = _quotient(one, one)
    assert found.value == 1.0
    assert found.low is not None
    assert np.log(found.low) == pytest.approx(-np.sqrt(2) * np.log(1.25))
    assert found.high == pytest.approx(1 / found.low)


def test_a_suspect_point_has_no_verdict(tmp_path: Path) -> None:
    ours = write(tmp_path / "x" / "a", SYSTEMS[1:2])
    theirs = write(tmp_path / "x" / "b", SYSTEMS[1:2], 2.0)
    for path in theirs.glob("cells/*/status.json"):
        path.write_text(path.read_text().replace('"ok"', '"suspect"'))
    (row,) = rows_of(ours, theirs)
    assert row["verdict"] is None
    assert row["decode_speed_ratio"] == pytest.approx(2.0)
    assert "| suspect " in (ours / "compare-b.md").read_text()


def test_a_failed_point_has_no_ratio(tmp_path: Path) -> None:
    ours = write(tmp_path / "x" / "a", SYSTEMS[1:2])
    theirs = tmp_path / "x" / "b"
    write_run(theirs, PLAN)
    write_status(theirs, cell(PLAN, SYSTEMS[1], 1), "failed", "no port")
    (row,) = rows_of(ours, theirs)
    assert row["decode_speed_ratio"] is None
    assert row["verdict"] is None
    assert "| failed " in (ours / "compare-b.md").read_text()


def test_environment_and_configuration_are_set_side_by_side(tmp_path: Path) -> None:
    ours, theirs = (write(tmp_path / "x" / name, SYSTEMS[:1]) for name in "ab")
    text = (theirs / "environment.json").read_text()
    (theirs / "environment.json").write_text(text.replace('"torch": "2.13.0"', '"torch": "2.14.0"'))
    with (theirs / "config.yaml").open("a") as config:
        config.write("run_id: b\nload:\n  repeats: 3\n")
    page = build_comparison(ours, theirs).report.read_text()
    assert "Environment (environment.json): 1 difference<" in page
    assert re.search(r"\| `packages.torch` +\| +2.13.0 +\| +2.14.0 +\|", page)
    assert "Configuration (config.yaml): 1 difference<" in page
    assert re.search(r"\| `load.repeats` +\| +– +\| +3 +\|", page)


def test_other_prompts_and_single_starts_are_said(tmp_path: Path, two: tuple[Path, Path]) -> None:
    text = build_comparison(*two).report.read_text()
    answer = text.split("## The answer")[1].split("## ")[0]
    assert "3 verdicts of faster or slower rest on one block of repetition" in answer
    assert text.count("faster, starts not in the interval") == 3
    assert "other prompts" not in answer
    theirs = write(tmp_path / "synthetic" / "few", SYSTEMS)
    for path in theirs.glob("cells/*/cell.yaml"):
        path.write_text(path.read_text().replace("prompts_hash: synthetic", "prompts_hash: others"))
    _rename(theirs)
    answer = build_comparison(two[0], theirs).report.read_text().split("## The answer")[1].split("## ")[0]
    assert "(with other prompts at 3 of them: not the same questions)" in answer


def test_runs_of_one_name_are_called_by_their_folders(tmp_path: Path) -> None:
    ours, theirs = (write(tmp_path / name / "x" / "run", SYSTEMS[:1]) for name in "ab")
    title = build_comparison(ours, theirs).report.read_text().partition("\n")[0]
    assert title == f"# ddbench comparison: {ours} against {theirs}"


def test_the_door(two: tuple[Path, Path]) -> None:
    ours, theirs = (str(path) for path in two)
    assert report.run({"run": ours, "against": theirs}, "id") == {
        "run": ours,
        "report": f"{ours}/compare-new.md",
        "results": f"{ours}/compare-new.parquet",
        "cells": {"ok": 6, "unsupported": 0, "failed": 0, "suspect": 0},
    }


@pytest.mark.parametrize("against", ["nowhere", 5, "{run}", "{run}/../old"])
def test_a_run_that_cannot_be_compared_with(two: tuple[Path, Path], against: object) -> None:
    given = against.replace("{run}", str(two[0])) if isinstance(against, str) else against
    with pytest.raises(ConfigError) as refused:
        report.run({"run": str(two[0]), "against": given}, "id")
    assert refused.value.key == "against"
    assert "\n" not in str(refused.value)


def test_a_run_without_a_finished_cell(two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    with pytest.raises(ConfigError, match="at least one finished cell"):
        report.run({"run": str(two[0]), "against": str(tmp_path)}, "id")


def _rename(run: Path) -> None:
    """Folders by the ids that their cells have now."""
    import yaml

    from ddbench.records import Cell

    for folder in list((run / "cells").iterdir()):
        cell_id = Cell.from_dict(yaml.safe_load((folder / "cell.yaml").read_text())).cell_id
        for path in folder.glob("*.parquet"):
            pq.write_table(_moved(pq.read_table(path), cell_id, 1.0), path)
        folder.rename(run / "cells" / cell_id)


def test_blocks_of_two_runs_are_pooled_not_paired(tmp_path: Path) -> None:
    """Three blocks against one, of which the later two are twice as slow: all of them count."""
    system = SYSTEMS[0]
    for name, blocks in (("ours", 3), ("theirs", 1)):
        write_run(tmp_path / name, PLAN)
        for block in range(blocks):
            each = cell(PLAN, system, 1, block=block)
            write_cell(tmp_path / name, PLAN, each)
            path = tmp_path / name / "cells" / each.cell_id / "requests.parquet"
            rows = [
                {**row, "output_tokens": 11, "latency_s": row["ttft_s"] + (1.0 if block == 0 else 2.0)}
                for row in pq.read_table(path).to_pylist()
            ]
            pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)
    row = rows_of(tmp_path / "ours", tmp_path / "theirs")[0]
    assert row["decode_speed_ratio"] == pytest.approx(3 / 5)
    assert row["method"].endswith("all blocks of both runs pooled, 3 and 1")


def test_each_end_of_an_unpaired_interval_takes_the_other_arms_opposite_end() -> None:
    first, second = Estimate(10.0, 10.0, 10.0, 4), Estimate(5.0, 4.0, 8.0, 4)
    ratio = _quotient(first, second)
    assert (ratio.low, ratio.high) == (pytest.approx(10 / 8), pytest.approx(10 / 4))
