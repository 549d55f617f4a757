"""The plan for an engine that is a server an arm: order, refusals by shape, arms of its own choice, server starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.errors import ConfigError
from experiments.adaptive.arms import refuse_engine as refuse_policy
from experiments.engines import engine_of
from experiments.engines.vllm import VLLM
from experiments.estimate import server_starts
from experiments.plan import Facts, Planned, make_plan
from experiments.settings import Settings, load_settings
from experiments.shapes import Shape
from runners.vllm.flags import reserve

CONF = Path(__file__).resolve().parents[2] / "conf"
FACTS = Facts("vllm 0.32.0 torch 2.13.0", {}, "hash", 8, {}, VLLM)
SHAPES = ("sweep.width=[1,4]", "sweep.depth=[3,15]", "sweep.nodes=[3,16]", "sweep.batch_size=[1,8]")


def settings(*overrides: str) -> Settings:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", overrides=["engine=vllm", *overrides]), resolve=True)
    return load_settings(config, "id")


def cells(*overrides: str) -> tuple[Planned, ...]:
    return make_plan(settings(*SHAPES, *overrides), FACTS).cells


def test_an_arm_is_measured_in_one_go_within_a_block() -> None:
    planned = cells("load.blocks=2", "sweep.temperature=[0.0,0.7]")
    arms = [item.cell.arm for item in planned]
    changes = sum(server_starts([item.cell for item in planned], server_per_arm=True))
    distinct = len({repr(arm) for arm in arms})
    assert changes == 2 * distinct  # the arm that ends a block begins the next one, on a server started anew
    first, second = (
        [item.cell.arm for item in planned if item.cell.block == block and item.cell.batch_size == 1]
        for block in (0, 1)
    )
    assert [repr(arm) for arm in second[::2]] == [repr(arm) for arm in first[::2]][::-1]
    assert arms[0].strategy == "autoregressive"


def test_trees_of_a_hybrid_alone_are_refused_before_a_vllm_is_looked_for() -> None:
    for strategies, said in (("[ddtree]", True), ("[autoregressive,ddtree]", False)):
        asked = settings("model=tiny_hybrid", "engine.python=/nowhere/python", f"sweep.strategy={strategies}")
        assert (VLLM.refuse_all(asked) is not None) is said
    assert VLLM.refuse_all(settings("model=tiny", "sweep.strategy=[ddtree]")) is None


def test_the_reference_engine_starts_once_a_block() -> None:
    planned = make_plan(settings("engine=reference", "load.blocks=3", *SHAPES), Facts("v", {}, "h", 8, {})).cells
    cells = [item.cell for item in planned]
    starts = server_starts(cells, server_per_arm=False)
    assert [cell.block for cell, start in zip(cells, starts, strict=True) if start] == [0, 1, 2]
    assert sum(server_starts(cells, server_per_arm=False, restart=False)) == 1
    assert server_starts([], server_per_arm=True) == []


def test_stock_drafters_on_the_cpu_are_greedy_only() -> None:
    for device, refused in (("cpu", {"dflash", "eagle"}), ("cuda", set())):
        planned = cells("sweep.temperature=[0.0,0.7]", f"engine.device={device}")
        runnable = [item for item in planned if item.unsupported is None or "copy" in item.unsupported]
        hot = {item.cell.arm.strategy for item in runnable if item.unsupported is not None}
        assert hot == refused
        assert all(item.cell.temperature > 0 for item in runnable if item.unsupported is not None)
        assert {"autoregressive", "ddtree"} <= {i.cell.arm.strategy for i in planned if not i.unsupported}


def test_refusals_are_by_shape() -> None:
    reasons: dict[tuple[Any, ...], str | None] = {}
    for item in cells():
        arm = item.cell.arm
        reasons[(arm.strategy, arm.width, arm.depth, arm.nodes)] = item.unsupported
    assert reasons[("eagle", 1, 3, 3)] is None
    assert "no EAGLE trees" in (reasons[("eagle", 4, 3, 16)] or "")
    assert reasons[("dflash", None, 15, None)] is None
    assert "Only depth 15" in (reasons[("dflash", None, 3, None)] or "")
    assert reasons[("ddtree", 4, 15, 16)] is None
    assert reasons[("autoregressive", None, None, None)] is None


def test_all_arms_have_the_same_flags() -> None:
    flags = [item.cell.arm.flags for item in cells()]
    assert all(each == flags[0] for each in flags)
    assert flags[0]["max_num_seqs"] == 8
    assert flags[0]["attention_backend"] == "TRITON_ATTN"


def test_arms_of_the_engines_own_choice_come_beside_the_others() -> None:
    plain, more = cells(), cells("engine.default_arms=true")
    assert more[: len(plain)] == plain
    own = [item for item in more[len(plain) :] if (item.cell.batch_size, item.cell.temperature) == (1, 0)]
    assert [(item.cell.arm.strategy, item.cell.arm.depth) for item in own] == [("autoregressive", None), ("dflash", 15)]
    for item in own:
        assert item.unsupported is None
        assert item.cell.arm.flags["model_runner"] == item.cell.arm.flags["attention_backend"] == "default"
    reference = settings("engine=reference")
    reference = replace(reference, engine=replace(reference.engine, default_arms=True))
    with pytest.raises(ConfigError, match=r"engine.default_arms=True"):
        make_plan(reference, Facts("v", {}, "h", 8, {}))


def test_a_running_server_is_one_arm() -> None:
    attached = settings("engine.url=http://127.0.0.1:1", *SHAPES)
    arms = [item.cell.arm for item in make_plan(attached, FACTS).cells]
    with pytest.raises(ConfigError, match=r"engine.url=.*one arm"):
        VLLM.options(attached, arms)
    options = VLLM.options(attached, arms[:1])
    assert options is not None
    assert options.url == "http://127.0.0.1:1"
    with pytest.raises(ConfigError, match=r"engine.default_arms"):
        make_plan(replace(attached, engine=replace(attached.engine, default_arms=True)), FACTS)


def test_room_is_kept_for_the_widest_draft() -> None:
    planned = settings(*SHAPES)
    options = VLLM.options(planned, [item.cell.arm for item in make_plan(planned, FACTS).cells])
    assert options is not None
    assert options.reserved == reserve(16)
    assert options.strategies == ("autoregressive", "dflash", "eagle", "ddtree")
    assert options.batch_sizes == (1, 8)


def test_a_dry_run_needs_no_sglang() -> None:
    asked = settings("engine=sglang", "engine.python=/nowhere/python", "model=tiny_hybrid", "dry_run=true")
    sglang = engine_of("sglang")
    tree = "ddtree", Shape(depth=15, nodes=16), sglang.flags(asked, [])
    assert sglang.refuse_all(asked) is None
    assert sglang.refuse(asked, *tree) is None
    assert refuse_policy(asked, "cost_optimal") is None
    questions = (
        sglang.refuse_all,
        lambda real: sglang.refuse(real, *tree),
        lambda real: refuse_policy(real, "caddtree"),
    )
    for question in questions:
        with pytest.raises(ConfigError, match=r"engine\.python"):
            question(replace(asked, dry_run=False))


def test_open_loops() -> None:
    opened = settings("load=open", "load.rate=3.5")
    assert VLLM.refuse_all(opened) is None
    assert "closed loop only" in (engine_of("reference").refuse_all(opened) or "")
    assert make_plan(opened, FACTS).cells[0].cell.arm.flags["request_rate"] == 3.5
    assert "request_rate" not in cells()[0].cell.arm.flags
    for overrides in (["load=open", "load.rate=0"], ["load=closed", "load.rate=2"], ["load=open", "load.rate=null"]):
        with pytest.raises(ConfigError, match=r"load.rate="):
            settings(*overrides)


@pytest.mark.parametrize(
    "bad", ["engine.flags.page_size=16", "engine.flags.model_runner=V3", "engine.flags.block_size=big"]
)
def test_flags_are_checked_at_the_door(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"engine.flags"):
        make_plan(settings(f"+{bad}" if "page_size" in bad else bad), FACTS)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("engine.device=cpu", "+engine.flags.cuda_graphs=true"), "cuda_graphs=True: false on the CPU"),
        (("model=qwen36_27b", "+engine.flags.cuda_graphs=true"), "false for qwen36_27b: a hybrid's passes"),
        (("model=qwen3_coder_30b_a3b", "+engine.flags.cuda_graphs=true"), "false for .*: its passes ask the host"),
        (("+engine.flags.cuda_graphs=perhaps",), "cuda_graphs='perhaps': true or false"),
        (("+engine.flags.cuda_graph=true",), "engine.flags.cuda_graph=True: cuda_graphs"),
    ],
)
def test_the_reference_engine_records_no_graphs_that_it_has_not(overrides: tuple[str, ...], says: str) -> None:
    asked = settings("engine=reference", "engine.device=cuda", *overrides)
    with pytest.raises(ConfigError, match=says):
        engine_of("reference").flags(asked, [])


def test_the_reference_engine_takes_graphs_on_a_gpu_and_flags_of_a_users_own() -> None:
    asked = settings("engine=reference", "engine.device=cuda", "+engine.flags.cuda_graphs=true", "+engine.flags.rack=7")
    assert engine_of("reference").flags(asked, []) == {"cuda_graphs": True, "rack": 7}
