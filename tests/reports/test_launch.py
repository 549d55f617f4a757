"""The winner's command: it starts what was measured."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from synthetic import Plan, arm, cell, write_cell, write_run

from ddbench.__main__ import conf_folder
from ddbench.records import Arm
from experiments.settings import load_settings
from reports.aggregate import analyse
from reports.frames import Stored, read_run, records
from reports.sections import launch
from runners.vllm.command import Machine, build
from runners.vllm.flags import Demands, resolve
from runners.vllm.versions import capabilities
from tests.runners.vllm.arms import GIVEN, HUB

PLAN = Plan(shapes={}, batch_sizes=(4,), prompts=2)
SHAPES = {
    "autoregressive": (None, None, None),
    "dflash": (None, 15, None),
    "eagle": (1, 3, 3),
    "ddtree": (4, None, 32),
}


def stored(run: Path, systems: list[Arm], command: object = None, temperature: float = 0.0) -> Stored:
    write_run(run, PLAN)
    environment = json.loads((run / "environment.json").read_text()) | {"command": command}
    (run / "environment.json").write_text(json.dumps(environment))
    for system in systems:
        write_cell(run, PLAN, cell(PLAN, system, 4, temperature))
    return read_run(run)


def row_of(found: Stored) -> dict[str, Any]:
    return records(analyse(found).frame)[0]


def settings(line: str) -> Any:
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "ddbench"]
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        data = OmegaConf.to_container(compose("config", overrides=words[3:]), resolve=True)
    return load_settings(data, "id")  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", SHAPES)
def test_the_line_measures_the_one_point(tmp_path: Path, strategy: str) -> None:
    width, depth, nodes = SHAPES[strategy]
    command = (
        "python -m ddbench experiment=smoke 'sweep.width=[2,8]' load.max_new_tokens=48 run_id=x output_dir=/tmp/o -m"
    )
    found = stored(tmp_path / "x" / "run", [arm(strategy, width, depth, nodes)], command, 0.7)
    line = launch.measure(found, row_of(found))
    given = settings(line)
    assert given.name == "smoke"
    assert given.load.max_new_tokens == 48
    assert given.sweep.strategy == (strategy,)
    assert given.sweep.batch_size == (4,)
    assert given.sweep.temperature == (0.7,)
    shape = {"width": width, "depth": depth, "nodes": nodes}
    for axis in {"autoregressive": (), "dflash": ("depth",)}.get(strategy, tuple(shape)):
        assert getattr(given.sweep, axis) == (shape[axis],)
    assert "/tmp/o" not in line
    assert "run_id" not in line


def test_spine_and_floor_are_in_the_line(tmp_path: Path) -> None:
    tree = arm("ddtree", 2, 3, 8, force_spine=True, min_log_prob=-4.0)
    found = stored(tmp_path / "x" / "run", [tree], ["python", "-m", "ddbench"])
    given = settings(launch.measure(found, row_of(found)))
    assert given.strategy.force_spine is True
    assert given.strategy.min_log_prob == -4.0


def test_a_run_without_a_stored_command_names_its_experiment(tmp_path: Path) -> None:
    found = stored(tmp_path / "smoke" / "run", [arm("dflash", None, 3, None)])
    assert launch.lines(found, row_of(found)) == [
        "python -m ddbench experiment=smoke 'sweep.strategy=[dflash]' 'sweep.depth=[3]' 'sweep.batch_size=[4]' "
        "'sweep.temperature=[0.0]'"
    ]


def served(run: Path, strategy: str, device: str = "cuda") -> tuple[Stored, tuple[str, ...]]:
    """A run on vLLM that stored how its server was started, and the arguments it stored."""
    given = replace(GIVEN, max_model_len=2048, extra_args=("--max-log-len", "16"))
    flags = {**resolve(given, Demands(device, 4, 32, 2048, 11_264, False)), "device": device, "dtype": "bfloat16"}
    width, depth, nodes = SHAPES[strategy]
    system = arm(strategy, width, depth or 7, nodes, engine="vllm", flags=flags)
    if strategy == "autoregressive":
        system = replace(system, depth=None)
    machine = Machine("/somewhere/bin/python", device, "bfloat16", 1, "0" if device == "cuda" else None)
    made = build(system, HUB, machine, (4,), capabilities("0.32.0"))
    found = stored(run, [system], "python -m ddbench engine=vllm")
    folder = next((run / "cells").iterdir())
    (folder / "engine.json").write_text(json.dumps({"argv": made.argv, "environment": made.environment}))
    return found, made.argv


@pytest.mark.parametrize("strategy", SHAPES)
def test_vllm_serve_has_the_flags_that_the_server_had(tmp_path: Path, strategy: str) -> None:
    found, argv = served(tmp_path / "x" / "run", strategy)
    lines = launch.serve(found, row_of(found))
    words = shlex.split(" ".join(line.removesuffix("\\") for line in lines))
    start = words.index("vllm")
    assert words[start : start + 3] == ["vllm", "serve", "org/target"]
    assert words[:start] == ["OMP_NUM_THREADS=1", "VLLM_USE_V2_MODEL_RUNNER=0"]
    left_out = ["--host", "127.0.0.1", "--port", "{port}", "--model", "org/target", "--served-model-name", "ddbench"]
    kept = list(argv[3:])
    for word in [*left_out, "--disable-uvicorn-access-log"]:
        kept.remove(word)
    assert words[start + 3 :] == kept
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert not lines[-1].endswith("\\")
    assert ("--worker-cls" in words) == (strategy == "ddtree")


def test_the_tree_says_what_it_needs_and_how_to_measure_it(tmp_path: Path) -> None:
    found, _ = served(tmp_path / "x" / "run", "ddtree")
    lines = launch.lines(found, row_of(found))
    assert lines[0].startswith("# Needs ddbench in vLLM's environment")
    assert lines[-1].startswith("python -m ddbench engine=vllm 'sweep.strategy=[ddtree]'")


def test_on_a_cpu_the_module_is_started(tmp_path: Path) -> None:
    found, _ = served(tmp_path / "x" / "run", "dflash", "cpu")
    first = launch.serve(found, row_of(found))[0]
    assert "python -m vllm.entrypoints.openai.api_server --model org/target" in first


def test_without_stored_arguments_there_is_ddbench(tmp_path: Path) -> None:
    found, _ = served(tmp_path / "x" / "run", "dflash")
    next((found.run / "cells").iterdir()).joinpath("engine.json").unlink()
    lines = launch.lines(found, row_of(found))
    assert "did not store how its server was started" in lines[0]
    assert lines[1].startswith("python -m ddbench engine=vllm")


def test_memory_that_was_computed_before_the_start_is_told(tmp_path: Path) -> None:
    found = stored(tmp_path / "x" / "run", [arm("dflash", None, 3, None, engine="sglang")], "python -m ddbench")
    notes = next((found.run / "cells").iterdir()) / "engine.json"
    for facts, beside in (({"memory_free_gib": 139.04}, " of 139.0 GiB that were free"), ({}, "")):
        notes.write_text(json.dumps({"memory_predicted_gib": {"weights": 16.0, "total": 24.26}, **facts}))
        told = f"# Computed before its start: 24.3 GiB of GPU memory{beside}, passes at work not counted."
        assert launch.lines(found, row_of(found)) == [told, launch.measure(found, row_of(found))]
    notes.write_text(json.dumps({"memory_predicted_gib": None, "memory_unknown": "tensor parallelism"}))
    assert launch.lines(found, row_of(found)) == [launch.measure(found, row_of(found))]


def test_the_server_of_somebody_else_is_not_made_up(tmp_path: Path) -> None:
    system = arm("dflash", None, 3, None, engine="vllm", flags={"attached": True})
    found = stored(tmp_path / "x" / "run", [system])
    assert launch.lines(found, row_of(found)) == [
        "# The server was started by somebody else: its command line is not known."
    ]
