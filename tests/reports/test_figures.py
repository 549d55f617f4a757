"""Figures, read back: titles, axes with units, n, and the data that was drawn."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from reports.aggregate import Analysis, analyse
from reports.choose import Scenario, best, fixed, scenarios
from reports.figures import _drawings
from reports.figures.style import STYLE, Drawing
from reports.frames import read_run


@pytest.fixture(scope="module")
def analysis(small_run: Path) -> Analysis:
    return analyse(read_run(small_run))


@pytest.fixture(scope="module")
def scenario(analysis: Analysis) -> Scenario:
    found = scenarios(analysis.frame)
    assert len(found) == 1
    return found[0]


@pytest.fixture(scope="module")
def drawings(scenario: Scenario, analysis: Analysis) -> dict[str, Drawing]:
    dropped = [{"strategy": "ddtree", "width": 2, "depth": 7, "nodes": 8, "reason": "never"}]
    with mpl.rc_context(STYLE):
        return {drawing.name: drawing for drawing in _drawings(scenario, analysis, dropped)}


def visible(drawing: Drawing) -> list:
    return [axis for axis in drawing.figure.axes if axis.get_visible() and axis.get_label() != "<colorbar>"]


def test_every_figure_has_title_n_and_labels(drawings: dict[str, Drawing]) -> None:
    for name, drawing in drawings.items():
        texts = " ".join(text.get_text() for text in drawing.figure.texts)
        assert drawing.title in texts, name
        assert "n = 8 prompts" in texts.replace("\n", " "), name
        assert drawing.caption
        axes = visible(drawing)
        assert any(axis.get_xlabel() for axis in axes), name
        assert any(axis.get_ylabel() or axis.get_yticklabels() for axis in axes), name


def test_units_are_on_the_axes(drawings: dict[str, Drawing]) -> None:
    expected = {
        "speedup_vs_batch_size": ("requests in flight", "ratio of decode tokens/s"),
        "acceptance_vs_step_time": ("(ms)", "tokens per round"),
        "acceptance_vs_nodes": ("root not counted", "tokens per round"),
        "acceptance_by_depth": ("drafted tokens", "share of rounds"),
    }
    for name, (x, y) in expected.items():
        axis = visible(drawings[name])[0]
        assert x in axis.get_xlabel()
        assert y in axis.get_ylabel()


def test_the_heat_map_holds_the_results(drawings: dict[str, Drawing], scenario: Scenario) -> None:
    axis = visible(drawings["acceptance_heatmap_ddtree_b4"])[1]
    assert axis.get_title() == "16 nodes"
    drawn = axis.images[0].get_array()
    frame = scenario.at(4)
    frame = frame[(frame["strategy"] == "ddtree") & (frame["nodes"] == 16)]
    widths = [2, None]
    for row in frame.itertuples():
        width = None if row.width is np.nan or str(row.width) == "<NA>" else int(row.width)
        assert drawn[widths.index(width), [3, 7].index(int(row.depth))] == pytest.approx(row.acceptance_length)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["2", "∞"]
    assert "width" in visible(drawings["acceptance_heatmap_ddtree_b4"])[0].get_ylabel()


def test_eagle_has_its_own_map_and_axis(drawings: dict[str, Drawing]) -> None:
    assert "top-k" in visible(drawings["acceptance_heatmap_eagle_b1"])[0].get_ylabel()


def test_heat_maps_of_one_strategy_share_the_scale_of_acceptance(drawings: dict[str, Drawing]) -> None:
    scales = [visible(drawings[f"acceptance_heatmap_ddtree_b{size}"])[0].images[0].norm for size in (1, 4)]
    assert (scales[0].vmin, scales[0].vmax) == (scales[1].vmin, scales[1].vmax)


def test_speedup_lines_hold_the_results(drawings: dict[str, Drawing], scenario: Scenario) -> None:
    axis = visible(drawings["speedup_vs_batch_size"])[1]
    lines = {container.get_label(): container.lines[0] for container in axis.containers}
    frame = fixed(scenario.frame)
    tree = frame[frame["strategy"] == "ddtree"]
    drawn = lines[tree["label"].iloc[0]].get_ydata()
    assert list(drawn) == pytest.approx(tree["speedup_vs_dflash"].to_list())
    assert axis.get_ylim()[0] == 0


def test_chosen_points(scenario: Scenario) -> None:
    frame, top = fixed(scenario.frame), best(scenario.frame)
    assert frame.groupby("strategy")["label"].nunique().eq(1).all()
    for size in scenario.batch_sizes:
        here = scenario.at(size)
        first = top[top["batch_size"] == size].iloc[0]
        assert first["tokens_per_s_per_user"] == here["tokens_per_s_per_user"].max()


def test_the_round_split_sums_to_the_round(drawings: dict[str, Drawing], scenario: Scenario) -> None:
    axis = visible(drawings["round_time_split"])[0]
    widths: dict[int, float] = {}
    for container in axis.containers:
        for row, patch in enumerate(container):
            widths[row] = widths.get(row, 0.0) + patch.get_width()
    here = fixed(scenario.frame)
    here = here[here["batch_size"] == scenario.batch_sizes[0]][::-1]
    assert list(widths.values()) == pytest.approx(here["step_ms"].to_list())
