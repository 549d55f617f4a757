"""Blocks of repetition are starts of the engine, in ABBA order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments.cells import Rules, Todo, run_cells
from experiments.engines.reference import REFERENCE
from experiments.engines.vllm import VLLM
from experiments.plan import Facts, make_plan
from experiments.progress import Progress
from experiments.settings import load_settings
from experiments.store import RunFolder
from runners.base import CellJob, CellOutcome

CONF = Path(__file__).resolve().parents[2] / "conf"
GRID = ("sweep.strategy=[autoregressive,dflash]", "sweep.batch_size=[1,8]", "sweep.temperature=[0.0]")


@dataclass
class Diary:
    """An engine that writes down what is asked of it, and measures nothing."""

    entries: list[str] = field(default_factory=list)

    def start(self) -> dict[str, Any]:
        self.entries.append("start")
        return {}

    def stop(self) -> None:
        self.entries.append("stop")

    def ask(self, prompts: object, warmup: object = None) -> dict[str, Any]:
        raise AssertionError("one turn is asked")

    def texts(self, token_ids: object) -> list[str]:
        raise AssertionError("one turn is asked")

    def run_cell(self, job: CellJob, on_progress: object) -> CellOutcome:
        arm = job.cell.arm
        self.entries.append(f"{arm.strategy[0]}{arm.depth or ''}-{job.cell.batch_size}")
        return CellOutcome("unsupported", "nothing was measured")


def diary(tmp_path: Path, engine: str, depths: str, blocks: int, restart: bool = True) -> list[str]:
    """What the engine is asked over a plan, from its first start on."""
    overrides = [f"engine={engine}", *GRID, f"sweep.depth={depths}", f"load.blocks={blocks}"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = OmegaConf.to_container(compose("config", overrides=overrides), resolve=True)
    facts = Facts("v", {}, "hash", 8, {}, VLLM if engine == "vllm" else REFERENCE)
    cells = make_plan(load_settings(config, "id"), facts).cells
    folder = RunFolder(tmp_path / "run")
    folder.open({}, {}, ())
    runner = Diary(["start"])
    run_cells([Todo(each, 1.0) for each in cells], runner, folder, Rules(2, restart), Progress([1.0] * len(cells)))
    return runner.entries


def test_the_reference_engine_is_started_anew_for_each_block_and_its_arms_turn_round(tmp_path: Path) -> None:
    forward = ["start", "a-1", "d3-1", "d15-1", "a-8", "d3-8", "d15-8"]
    backward = ["start", "d15-1", "d3-1", "a-1", "d15-8", "d3-8", "a-8"]
    assert diary(tmp_path, "reference", "[3,15]", 4) == [*forward, *backward, *forward, *backward]


def test_an_arm_with_a_server_of_its_own_gets_another_in_the_next_block(tmp_path: Path) -> None:
    """The arm that ends one block begins the next: without the start between, both would be one server."""
    entries = diary(tmp_path, "vllm", "[15]", 2)
    assert entries == [
        *("start", "a-1", "a-8", "d15-1", "d15-8"),
        *("start", "d15-1", "d15-8", "a-1", "a-8"),
    ]


@pytest.mark.parametrize(("blocks", "restart"), [(1, True), (3, False)])
def test_one_start_where_one_is_meant(blocks: int, restart: bool, tmp_path: Path) -> None:
    assert diary(tmp_path, "reference", "[15]", blocks, restart).count("start") == 1
