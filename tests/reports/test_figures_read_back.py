"""The Pareto front, the crossover, both acceptance rates and the telemetry strip: what was drawn is what was stored."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from synthetic import Plan, arm, cell, write_cell, write_run

from ddbench.records import TELEMETRY
from reports.aggregate import Analysis, analyse
from reports.choose import Scenario, fixed, scenarios, usable
from reports.crossover import crossovers
from reports.figures import depth, pareto, speedup, telemetry
from reports.figures.style import COLOURS, LINES, MARKERS, STYLE, Drawing
from reports.frames import Stored, read_run
from reports.telemetry import by_cell, throttled

SIZES = (1, 2, 4, 8)


def made(drawing: Drawing | None) -> tuple[Drawing, list[Axes]]:
    assert drawing is not None
    return drawing, [axis for axis in drawing.figure.axes if axis.get_visible()]


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Trees so wide that they lose at the larger batch sizes."""
    run = tmp_path_factory.mktemp("outputs") / "synthetic" / "run"
    shapes = {
        "autoregressive": [(None, None, None)],
        "dflash": [(None, 7, None)],
        "eagle": [(4, 4, 16)],
        "ddtree": [(4, 7, 64)],
    }
    write_run(run, Plan(shapes=shapes, batch_sizes=SIZES, prompts=16))
    return analyse(read_run(run))


@pytest.fixture(scope="module")
def scenario(analysis: Analysis) -> Scenario:
    (found,) = scenarios(analysis.frame)
    return found


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    users, machines = (np.asarray(values, dtype=float) for values in zip(*points, strict=True))
    found = pareto.front(users, machines)

    def beaten(i: int) -> bool:
        no_worse = (users >= users[i]) & (machines >= machines[i])
        better = (users > users[i]) | (machines > machines[i])
        equal_before = (users == users[i]) & (machines == machines[i]) & (np.arange(len(users)) < i)
        return bool((no_worse & better).any() or equal_before.any())

    assert sorted(found) == [i for i in range(len(points)) if not beaten(i)]
    assert list(users[found]) == sorted(users[found], reverse=True)


def test_pareto_holds_every_point_and_the_front(scenario: Scenario) -> None:
    with mpl.rc_context(STYLE):
        drawing, (axis,) = made(pareto.user_against_machine(scenario))
    assert "tokens/s per user" in axis.get_xlabel()
    assert "tokens/s per machine, no GPU" in axis.get_ylabel()
    frame = usable(scenario.frame)
    drawn = {tuple(offset) for part in axis.collections for offset in np.asarray(part.get_offsets())}
    wanted = zip(frame["tokens_per_s_per_user"].astype(float), frame["tokens_per_s"].astype(float), strict=True)
    assert drawn == set(wanted)
    (line,) = [each for each in axis.lines if each.get_label() == "Pareto front"]
    users, machines = line.get_xdata(), line.get_ydata()
    assert all(
        not ((frame["tokens_per_s_per_user"] > x) & (frame["tokens_per_s"] > y)).any()
        for x, y in zip(users, machines, strict=True)
    )
    assert len(axis.texts) == len(users)
    assert "n = 16 prompts" in " ".join(text.get_text() for text in drawing.figure.texts)


def test_throughput_is_divided_by_the_gpus_that_share_the_model(tmp_path: Path) -> None:
    plan = Plan(shapes={}, batch_sizes=(1,), prompts=4)
    run = tmp_path / "synthetic" / "run"
    write_run(run, plan)
    for size in (1, 2):
        flags = {"device": "cuda", "tensor_parallel": 4}
        write_cell(run, plan, cell(plan, arm("dflash", None, 3, None, flags=flags), size))
    frame = analyse(read_run(run)).frame
    assert pareto.per_gpu(frame).to_list() == pytest.approx((frame["tokens_per_s"] / 4).to_list())


def test_crossovers_are_marked_where_the_line_crosses(scenario: Scenario) -> None:
    with mpl.rc_context(STYLE):
        _, axes = made(speedup.against_batch_size(scenario))
    frame = fixed(scenario.frame)
    tree = frame[frame["strategy"] == "ddtree"]
    wanted = crossovers(SIZES, tree["speedup_vs_autoregressive"].astype(float))
    assert len(wanted) == 1
    assert not wanted[0].rises
    marks = [text for text in axes[0].texts if text.get_gid() == "crossover"]
    mine = [text for text in marks if text.get_color() == COLOURS["ddtree"]]
    assert [text.get_text() for text in mine] == [f"{wanted[0].at:.2g}"]
    assert mine[0].xy[1] == 1.0  # type: ignore[attr-defined]


def test_lines_have_the_strategy_s_colour_marker_and_style(scenario: Scenario) -> None:
    with mpl.rc_context(STYLE):
        _, axes = made(speedup.against_batch_size(scenario))
    labels = {str(row["label"]): str(row["strategy"]) for _, row in fixed(scenario.frame).iterrows()}
    seen = set()
    for container in axes[0].containers:
        strategy = labels.get(container.get_label())
        if strategy is not None:
            line = container.lines[0]
            assert to_hex(line.get_color()).upper() == COLOURS[strategy].upper()
            assert (line.get_marker(), line.get_linestyle()) == (MARKERS[strategy], LINES[strategy])
            seen.add(strategy)
    assert seen == {"dflash", "eagle", "ddtree"}


def test_both_rates_by_depth_are_those_of_the_histograms(scenario: Scenario, analysis: Analysis) -> None:
    with mpl.rc_context(STYLE):
        _, axes = made(depth.acceptance_by_depth(scenario, analysis))
    point = next(each for each in analysis.points if each.row["strategy"] == "dflash" and each.row["batch_size"] == 1)
    histogram = np.sum([list(row) for row in point.requests["accept_histogram"]], axis=0)
    reached = histogram[::-1].cumsum()[::-1]  # [d] = rounds that accepted at least d
    unconditional, conditional = reached[1:] / reached[0], reached[1:] / reached[:-1]
    for axis, rates in zip(axes, (unconditional, conditional), strict=True):
        (line,) = [each.lines[0] for each in axis.containers if str(each.get_label()).startswith("dflash")]
        depths = np.asarray(line.get_xdata(), dtype=int)
        assert list(line.get_ydata()) == pytest.approx([rates[d - 1] for d in depths])
        assert len(depths) >= 3
        for bars in axis.collections:
            assert max(end[1] for segment in bars.get_segments() for end in segment) <= 1.0  # type: ignore[attr-defined]
    assert "at least d" in axes[0].get_ylabel()
    assert "d - 1" in axes[1].get_ylabel()


@pytest.fixture
def on_a_gpu(tmp_path: Path) -> Stored:
    """Two cells ten minutes apart, the second hotter, slower and held back in half of its samples."""
    plan = Plan(shapes={}, batch_sizes=(1,), prompts=2)
    run = tmp_path / "synthetic" / "run"
    write_run(run, plan)
    systems = (arm("autoregressive", None, None, None), arm("ddtree", 2, 3, 8))
    for index, system in enumerate(systems):
        each = cell(plan, system, 1)
        write_cell(run, plan, each)
        folder = run / "cells" / each.cell_id
        status = json.loads((folder / "status.json").read_text())
        start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=10 * index)
        (folder / "status.json").write_text(json.dumps({**status, "started": start.isoformat()}))
        readings = {
            "gpu_sm_clock_mhz": [1980.0 - 100 * index, 1970.0 - 100 * index, 1990.0 - 100 * index],
            "gpu_temperature_c": [50.0 + 20 * index] * 3,
            "gpu_power_w": [300.0, 310.0, 290.0],
            "gpu_power_limit_w": [400.0] * 3,
            "gpu_throttle_reasons": [0.0, 4.0 * index, 0.0],
        }
        rows = [
            {"cell_id": folder.name, "time_s": float(time), "name": name, "value": value}
            for name, values in readings.items()
            for time, value in enumerate(values)
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=TELEMETRY), folder / "telemetry.parquet")
    return read_run(run)


def test_the_strip_shows_each_cell_in_time(on_a_gpu: Stored) -> None:
    with mpl.rc_context(STYLE):
        drawing, axes = made(telemetry.strip(on_a_gpu))
    assert [axis.get_ylabel().replace("\n", " ") for axis in axes] == [
        "SM clock (MHz)",
        "temperature (°C)",
        "power (W)",
    ]
    assert axes[-1].get_xlabel() == "start of the cell (minutes after the first)"
    clocks = {each.get_label(): each.lines[0].get_xydata().tolist() for each in axes[0].containers}
    assert clocks == {"autoregressive": [[0.0, 1980.0]], "ddtree": [[10.0, 1880.0]]}
    low, high = axes[0].containers[0].lines[2][0].get_segments()[0][:, 1]
    assert (low, high) == (1970.0, 1990.0)
    limits = [line for line in axes[2].lines if line.get_label() == "power limit"]
    assert [line.get_ydata()[0] for line in limits] == [400.0]
    assert "n = 2 cells" in " ".join(text.get_text() for text in drawing.figure.texts)


def test_throttle_reasons_are_no_quantity(on_a_gpu: Stored) -> None:
    assert "gpu_throttle_reasons" not in set(by_cell(on_a_gpu)["name"])
    assert throttled(on_a_gpu) == {"software power cap": pytest.approx(1 / 6)}


def test_without_telemetry_there_is_no_strip(on_a_gpu: Stored) -> None:
    bare = replace(on_a_gpu, telemetry=on_a_gpu.telemetry.iloc[:0])
    assert telemetry.strip(bare) is None
    unstarted = replace(on_a_gpu, cells=on_a_gpu.cells.assign(started=None).astype({"started": "string"}))
    assert telemetry.strip(unstarted) is None
