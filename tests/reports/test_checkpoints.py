"""Drafters of one target side by side: a planted worse one, a copy, and what the page and the figure say of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
import yaml

from ddbench.records import REQUESTS, Cell
from reports import build_report
from reports.aggregate import analyse
from reports.checkpoints import Group, checkpoints_of, groups_of, smallest, verdict
from reports.figures import draw_run
from reports.figures.checkpoints import by_checkpoint
from reports.frames import read_run
from reports.markdown import render
from reports.names import short_names
from reports.sections import checkpoints
from reports.statistics import Estimate

PLAN = synthetic.Plan(
    shapes={"autoregressive": [(None, None, None)]}, batch_sizes=(1, 2), prompts=18, with_rounds=False
)
DRAFTERS = {"step100": "/train/step_100/draft", "step200": "/train/step_200/draft", "again": "/copy/of/step_100"}
HASHES = {"step100": "sha256:aaaa", "step200": "sha256:bbbb", "again": "sha256:aaaa"}


def plant(run: Path, each: Cell, like: Cell) -> None:
    """A cell whose requests are those that another one would have."""
    rows, _ = synthetic.simulate(PLAN, like)
    folder = synthetic.write_status(run, each, "ok")
    for row in rows:
        row["cell_id"] = each.cell_id
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), folder / "requests.parquet")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """step200 drafts as one of depth 2 would, although it is called 5 like the others: a planted loss."""
    folder = tmp_path_factory.mktemp("outputs") / "checkpoint_compare" / "run"
    synthetic.write_run(folder, PLAN)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    told = {**config, "drafters": DRAFTERS, "role": "dflash"}
    (folder / "config.yaml").write_text(yaml.safe_dump(told, sort_keys=False))  # as the run folder's is written
    for batch in PLAN.batch_sizes:
        arm = synthetic.arm("dflash", None, 5, None)
        good = synthetic.cell(PLAN, arm, batch)
        bad = replace(good, arm=replace(arm, depth=2))
        for name, source in DRAFTERS.items():
            mine = replace(good, arm=replace(arm, drafter=source, drafter_revision=HASHES[name]))
            plant(folder, mine, bad if name == "step200" else good)
    return folder


@pytest.fixture(scope="module")
def groups(run: Path) -> list[Group]:
    stored = read_run(run)
    return groups_of(analyse(stored), checkpoints_of(stored))


def test_names_hashes_and_twins(run: Path) -> None:
    found = checkpoints_of(read_run(run))
    assert [each.name for each in found] == ["step100", "step200", "again"]
    assert [each.revision for each in found] == list(HASHES.values())
    assert [each.same_as for each in found] == [None, None, "step100"]


def test_differences_are_paired_by_prompt(groups: list[Group]) -> None:
    assert [(group.batch_size, list(group.points)) for group in groups] == [
        (1, list(DRAFTERS)),
        (2, list(DRAFTERS)),
    ]
    assert [group.batch_size for group in smallest(groups)] == [1]
    group = groups[0]
    worse, same = group.difference("step200", "step100"), group.difference("again", "step100")
    lengths = {}
    for name, point in group.points.items():
        emitted, rounds = point.counts.emitted.sum(), point.counts.rounds.sum()
        lengths[name] = emitted / rounds
    assert worse.value == pytest.approx(lengths["step200"] - lengths["step100"])
    assert worse.high is not None
    assert worse.high < 0
    assert worse.n == 18
    assert verdict(worse) == "worse"
    assert verdict(group.difference("step100", "step200")) == "better"
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    assert verdict(same) == "not distinguishable"


def test_by_category_the_worse_one_is_found(groups: list[Group]) -> None:
    group = groups[0]
    assert group.categories == ["code", "list", "prose"]
    for category in group.categories:
        difference = group.difference("step200", "step100", category)
        kept = [point.counts_of(group.prompts(category)) for point in group.points.values()]
        expected = kept[1].emitted.sum() / kept[1].rounds.sum() - kept[0].emitted.sum() / kept[0].rounds.sum()
        assert difference.value == pytest.approx(expected)
        assert difference.n == 6


def test_speed_has_no_interval_from_one_block(groups: list[Group]) -> None:
    ratio = groups[0].speed_ratio("step200", "step100")
    assert ratio.value is not None
    assert ratio.low is None
    assert ratio.method == "n = 1 block"


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.5, 0.1, 0.9, 9), "better"),
        (Estimate(-0.5, -0.9, -0.1, 9), "worse"),
        (Estimate(0.5, -0.1, 0.9, 9), "not distinguishable"),
        (Estimate(0.5, None, None, 1), "one prompt"),
        (Estimate(0.5, None, None, 2), "no interval (n = 2)"),
        (Estimate(None, None, None, 0), "no prompt in common"),
    ],
)
def test_verdicts(estimate: Estimate, text: str) -> None:
    assert verdict(estimate) == text


def test_the_page(run: Path) -> None:
    build_report(run, figures=False)
    text = (run / "report.md").read_text()
    section = text[text.index("## Drafter checkpoints") : text.index("\n## Results")]
    assert "same weights as step100" in section
    rows = [line for line in section.splitlines() if "| dflash d5" in line]
    assert len(rows) == 6
    assert sum("| worse " in row for row in rows) == 2
    assert sum("| not distinguishable (same weights) " in row for row in rows) == 2
    categories = section[section.index("### By category: dflash d5, batch size 1") :]
    assert categories.count("step100; not distinguishable: again (same weights)") >= 2
    assert "Acceptance by depth: dflash d5, batch size 1" in categories
    assert "dflash d5 step200" in text  # elsewhere their names tell the arms apart
    assert "step_200/draft |" not in text.partition("## Drafter checkpoints")[0]
    assert "autoregressive was fastest" in text or " with step100 was fastest" in text or " with again" in text


def test_intervals_stay_within_what_is_possible_and_need_three_prompts(run: Path, tmp_path: Path) -> None:
    few = tmp_path / "run"
    shutil.copytree(run, few)
    kept = {"code": 1, "list": 2, "prose": 3}  # prompts of each category
    for path in few.glob("cells/*/requests.parquet"):
        rows = pq.read_table(path).to_pylist()
        seen: dict[str, list[str]] = {}
        for row in sorted(rows, key=lambda row: row["prompt_id"]):
            names = seen.setdefault(row["category"], [])
            if row["prompt_id"] not in names and len(names) < kept[row["category"]]:
                names.append(row["prompt_id"])
        left = [row for row in rows if row["prompt_id"] in seen[row["category"]]]
        pq.write_table(pa.Table.from_pylist(left, schema=REQUESTS), path)
    stored = read_run(few)
    group = groups_of(analyse(stored), checkpoints_of(stored))[0]
    for category, n in kept.items():
        length, difference = group.length("step200", category), group.difference("step200", "step100", category)
        assert (length.n, difference.n) == (n, n)
        assert (length.low is None) == (difference.low is None) == (n < 3)
    prose = group.length("step100", "prose")
    assert prose.low is not None
    assert prose.high is not None
    assert 1 <= prose.low <= prose.high <= 6
    build_report(few, figures=False)
    categories = (few / "report.md").read_text().partition("### By category: dflash d5, batch size 1")[2]
    code, lists, _ = categories.partition("\n\n")[2].splitlines()[2:5]
    assert "(one prompt)" in code
    assert "(two prompts, no interval)" in lists
    assert "distinguishable" not in code + lists


def test_the_figure_is_saved_and_shown(run: Path, tmp_path: Path) -> None:
    stored = read_run(run)
    analysis = analyse(stored)
    saved = draw_run(stored, analysis, tmp_path)
    (mine,) = (figure for figure in saved if figure.section == "checkpoints")
    assert mine.path == tmp_path / "acceptance_by_checkpoint.png"
    assert mine.path.stat().st_size > 10_000
    page = render(stored, analysis, saved, "now")
    shown = page.index("![Acceptance by drafter checkpoint](figures/acceptance_by_checkpoint.png)")
    assert page.index("## Drafter checkpoints") < shown < page.index("\n## Results")


def test_the_figure_shows_the_rates(run: Path, groups: list[Group]) -> None:
    stored = read_run(run)
    drawing = by_checkpoint(stored, analyse(stored))
    assert drawing is not None
    axes = drawing.figure.axes
    assert len(axes) == 3
    lines: dict[str, Any] = {box.get_label(): box for box in axes[1].containers}
    assert list(lines) == list(DRAFTERS)
    looks = {(line[0].get_color(), line[0].get_marker(), str(line[0].get_linestyle())) for line in lines.values()}
    assert len({look[0] for look in looks}) == len({look[1] for look in looks}) == 3
    histogram = groups[0].points["step100"].counts.histogram.sum(axis=0)
    expected = [histogram[depth:].sum() / histogram.sum() for depth in range(1, 6)]
    assert np.allclose(lines["step100"][0].get_ydata(), expected)
    assert np.allclose(lines["step200"][0].get_ydata()[2:], 0.0)
    heights = axes[0].containers[1][0].get_ydata()
    own = [groups[0].points["step200"].counts_of(groups[0].prompts(name)) for name in groups[0].categories]
    assert np.allclose(heights, [counts.emitted.sum() / counts.rounds.sum() for counts in own])
    assert axes[0].get_ylabel() == "acceptance length (tokens per round)"


def test_a_run_with_one_drafter_says_nothing(run: Path) -> None:
    stored = read_run(run)
    analysis = analyse(stored)
    alone = replace(stored, cells=stored.cells[stored.cells["drafter"].isin([None, DRAFTERS["step100"]])])
    assert len(alone.cells) == 4
    assert checkpoints_of(alone) == []
    assert checkpoints.section(alone, analysis) == []
    assert by_checkpoint(alone, analysis) is None


def test_without_names_the_ends_of_the_sources_are_names(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "config.yaml").write_text("seed: 1\n")
    assert [each.name for each in checkpoints_of(read_run(folder))] == [
        "of/step_100",
        "step_100/draft",
        "step_200/draft",
    ]


def test_short_names() -> None:
    assert short_names(["/a/x", "/a/y/"]) == {"/a/x": "x", "/a/y/": "y"}
    assert short_names(["/a/x", "/b/x"]) == {"/a/x": "a/x", "/b/x": "b/x"}
    assert short_names(["org/model"]) == {"org/model": "model"}
    assert short_names([]) == {}
