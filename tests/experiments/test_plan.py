from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from ddbench.errors import ConfigError
from experiments.plan import Facts, Plan, make_plan
from experiments.settings import Settings, SweepSettings, load_settings
from experiments.shapes import Shape, capacity, why_not

FACTS = Facts("engine 1", {"target": "t", "dflash": "d", "eagle": "e"}, "hash", 8, {})
CONF = Path(__file__).resolve().parents[2] / "conf"


def base() -> Settings:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config"), resolve=True)
    return load_settings(config, "id")


BASE = base()


def sweep(**axes: Any) -> Settings:
    whole = {
        "strategy": ("autoregressive", "dflash", "eagle", "ddtree"),
        "width": (2, 4),
        "depth": (4, 7),
        "nodes": (8, 16),
        "batch_size": (1, 8),
        "temperature": (0.0,),
        **axes,
    }
    return replace(BASE, sweep=SweepSettings(**whole))


def shapes(plan: Plan, strategy: str) -> set[tuple[int | None, int | None, int | None]]:
    arms = (planned.cell.arm for planned in plan.cells)
    return {(arm.width, arm.depth, arm.nodes) for arm in arms if arm.strategy == strategy}


def brute_capacity(strategy: str, width: int, depth: int) -> int:
    """Counts the candidates of an EAGLE expansion, or the nodes of a full tree, one by one."""
    total, level = 0, 1
    for step in range(depth):
        level = level * width if strategy == "ddtree" else (width if step == 0 else width * width)
        total += level
    return total


axes = st.lists(st.integers(1, 20), min_size=1, max_size=4).map(tuple)


@given(
    strategy=st.lists(st.sampled_from(BASE.sweep.strategy), min_size=1, max_size=4, unique=True).map(tuple),
    width=st.lists(st.none() | st.integers(1, 6), min_size=2, max_size=4).map(tuple),
    depth=st.lists(st.none() | st.integers(1, 18), min_size=2, max_size=4).map(tuple),
    nodes=axes,
    batch_size=axes,
    temperature=st.lists(st.sampled_from([0.0, 0.7, 1.0]), min_size=1, max_size=3).map(tuple),
    force_spine=st.booleans(),
)
def test_a_plan_has_every_possible_point_once(force_spine: bool, **given_axes: Any) -> None:
    settings = sweep(**given_axes)
    settings = replace(settings, strategy=replace(settings.strategy, force_spine=force_spine))
    try:
        plan = make_plan(settings, FACTS)
    except ConfigError:
        return
    cells = [planned.cell for planned in plan.cells]
    assert len({cell.cell_id for cell in cells}) == len(cells)
    points = set(product(settings.sweep.batch_size, settings.sweep.temperature))
    assert {(cell.batch_size, cell.temperature) for cell in cells} == points
    for cell in cells:
        arm = cell.arm
        if arm.strategy == "autoregressive":
            assert (arm.width, arm.depth, arm.nodes, arm.drafter) == (None, None, None, None)
        elif arm.strategy == "dflash":
            assert arm.width is None
            assert arm.nodes is None
            assert arm.depth is not None
            assert arm.depth <= 15
        else:
            assert arm.depth is not None
            assert arm.nodes is not None
            assert arm.strategy == "eagle" or arm.depth <= 15
            if arm.width is not None:
                assert arm.nodes <= brute_capacity(arm.strategy, arm.width, arm.depth)
            if arm.force_spine:
                assert arm.nodes >= arm.depth
    dropped = {(d.strategy, d.width, d.depth, d.nodes, d.batch_size, d.temperature) for d in plan.dropped}
    assert len(dropped) == len(plan.dropped)
    kept = {(c.arm.strategy, c.arm.width, c.arm.depth, c.arm.nodes, c.batch_size, c.temperature) for c in cells}
    assert not dropped & kept
    for name in settings.sweep.strategy:
        have = {point[:4] for point in dropped | kept if point[0] == name}
        assert have == {(name, *shape) for shape in expected(name, settings.sweep)}


def expected(strategy: str, axes: SweepSettings) -> set[tuple[int | None, int | None, int | None]]:
    if strategy == "autoregressive":
        return {(None, None, None)}
    if strategy == "dflash":
        return {(None, depth or 15, None) for depth in axes.depth}
    whole = 15 if strategy == "ddtree" else None
    return {(width, depth or whole, nodes) for width in axes.width for depth in axes.depth for nodes in axes.nodes}


@given(width=st.integers(1, 6), depth=st.integers(1, 6), strategy=st.sampled_from(["eagle", "ddtree"]))
def test_capacity_counts_the_nodes(width: int, depth: int, strategy: str) -> None:
    room = brute_capacity(strategy, width, depth)
    assert capacity(strategy, width, depth, room + 1) == room
    assert why_not(strategy, Shape(width, depth, room), 16) is None
    assert "holds no more" in (why_not(strategy, Shape(width, depth, room + 1), 16) or "")


@pytest.mark.parametrize(
    ("strategy", "shape", "force_spine", "reason"),
    [
        ("dflash", Shape(depth=16), False, "depth 16 >= block size 16"),
        ("dflash", Shape(depth=15), False, None),
        ("ddtree", Shape(2, 16, 8), False, "depth 16 >= block size 16"),
        ("ddtree", Shape(2, 8, 4), True, "nodes 4 < depth 8"),
        ("ddtree", Shape(2, 8, 4), False, None),
        ("ddtree", Shape(None, 8, 4), True, "nodes 4 < depth 8"),
        ("ddtree", Shape(1, 8, 4), False, "the same chain as depth 4"),
        ("ddtree", Shape(1, 8, 8), True, None),
        ("ddtree", Shape(None, 15, 1024), False, None),
        ("eagle", Shape(None, 4, 4), False, "as width"),
        ("eagle", Shape(2, None, 4), False, "as depth"),
        ("eagle", Shape(2, 30, 64), False, None),
        ("eagle", Shape(1, 4, 4), False, None),
        ("autoregressive", Shape(), True, None),
    ],
)
def test_why_a_shape_cannot_be(strategy: str, shape: Shape, force_spine: bool, reason: str | None) -> None:
    found = why_not(strategy, shape, 16, force_spine)
    assert (found is None) if reason is None else reason in (found or "")


def test_axes_that_a_strategy_lacks_make_no_duplicates() -> None:
    plan = make_plan(sweep(), FACTS)
    assert shapes(plan, "autoregressive") == {(None, None, None)}
    assert shapes(plan, "dflash") == {(None, 4, None), (None, 7, None)}
    assert shapes(plan, "ddtree") == set(product((2, 4), (4, 7), (8, 16)))
    assert shapes(plan, "eagle") == set(product((2, 4), (4, 7), (8, 16))) - {(2, 4, 16)}
    assert {point.reason for point in plan.dropped} == {"nodes 16 > 14: a tree of this width and depth holds no more"}
    assert {point.batch_size for point in plan.dropped} == {1, 8}


def test_a_null_depth_is_the_whole_block() -> None:
    plan = make_plan(sweep(depth=(None, 15), strategy=("dflash", "ddtree")), FACTS)
    assert shapes(plan, "dflash") == {(None, 15, None)}
    assert {depth for _, depth, _ in shapes(plan, "ddtree")} == {15}


def test_autoregressive_comes_first_and_odd_blocks_run_backwards() -> None:
    settings = sweep(strategy=("ddtree", "autoregressive", "dflash"), depth=(4, 7), nodes=(8,), width=(2,))
    settings = replace(settings, load=replace(settings.load, blocks=3))
    order = [(p.cell.block, p.cell.batch_size, p.cell.arm.strategy) for p in make_plan(settings, FACTS).cells]
    arms = ["autoregressive", "ddtree", "ddtree", "dflash", "dflash"]
    there = [(1, name) for name in arms] + [(8, name) for name in arms]
    back = [(1, name) for name in arms[::-1]] + [(8, name) for name in arms[::-1]]
    assert [(batch, name) for block, batch, name in order if block == 0] == there
    assert [(batch, name) for block, batch, name in order if block == 1] == back
    assert [(batch, name) for block, batch, name in order if block == 2] == there
    assert [block for block, _, _ in order] == sorted(block for block, _, _ in order)


def test_blocks_share_their_point() -> None:
    settings = replace(sweep(), load=replace(BASE.load, blocks=2))
    cells = [planned.cell for planned in make_plan(settings, FACTS).cells]
    assert len({cell.point_id for cell in cells}) * 2 == len({cell.cell_id for cell in cells}) == len(cells)


def test_a_single_shape_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ConfigError, match="block size 16"):
        make_plan(sweep(width=(2,), depth=(16,), nodes=(8,)), FACTS)
    with pytest.raises(ConfigError, match="nodes 8 > 6"):
        make_plan(sweep(strategy=("ddtree",), width=(2,), depth=(2,), nodes=(8,)), FACTS)


def test_a_grid_in_which_nothing_can_be_is_an_error() -> None:
    with pytest.raises(ConfigError, match="none can be"):
        make_plan(sweep(strategy=("dflash",), depth=(16, 17)), FACTS)


def test_a_missing_drafter_makes_unsupported_cells() -> None:
    facts = replace(FACTS, unsupported={"eagle": "no drafter"})
    settings = replace(sweep(), model=replace(BASE.model, eagle=None))
    for planned in make_plan(settings, facts).cells:
        assert planned.unsupported == ("no drafter" if planned.cell.arm.strategy == "eagle" else None)


def test_the_cell_id_follows_what_is_measured_and_nothing_else() -> None:
    def ids(settings: Settings, facts: Facts = FACTS) -> set[str]:
        return {planned.cell.cell_id for planned in make_plan(settings, facts).cells}

    one = ids(sweep())
    assert ids(replace(sweep(), output_dir="elsewhere", run_id="other", strict=True)) == one
    assert not ids(replace(sweep(), seed=1)) & one
    assert not ids(sweep(), replace(FACTS, prompts_hash="other")) & one
    assert not ids(sweep(), replace(FACTS, engine_version="engine 2")) & one
    assert not ids(replace(sweep(), engine=replace(BASE.engine, threads=3))) & one
    assert len(ids(sweep(), replace(FACTS, revisions={**FACTS.revisions, "eagle": "new"})) & one) == len(one) - 14
