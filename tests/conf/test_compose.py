"""Every file of ``conf/`` composes and is valid, without any weights at hand."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.__main__ import conf_folder
from experiments.estimate import pair_gib
from experiments.settings import Settings, load_settings
from experiments.workloads import asset_path

CONF = Path(__file__).resolve().parents[2] / "conf"
PUBLISHED = ("llama31_8b", "qwen36_27b", "qwen36_35b_a3b", "qwen3_4b", "qwen3_8b", "qwen3_coder_30b_a3b")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        data = OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)
    assert isinstance(data, dict)
    return data  # type: ignore[return-value]


def settings(*overrides: str) -> Settings:
    return load_settings(composed(*overrides), "id")


def test_the_folder_is_found() -> None:
    assert conf_folder() == CONF


@pytest.mark.parametrize("experiment", options("experiment"))
def test_every_experiment_composes_and_names_a_function(experiment: str) -> None:
    config = composed(f"experiment={experiment}")
    module, _, function = config["_target_"].rpartition(".")
    assert callable(getattr(import_module(module), function))
    if config["_target_"] == "experiments.sweep.run":
        assert load_settings(config, "id").name == experiment


@pytest.mark.parametrize("group", ["engine", "strategy", "model", "load", "host", "tracking", "report"])
def test_every_option_is_valid(group: str) -> None:
    for option in options(group):
        assert settings(f"{group}={option}")
    assert settings("workload=file", "workload.path=prompts.jsonl")


@pytest.mark.parametrize("name", sorted({*options("workload")} - {"file"}))
def test_every_prompt_set_names_its_source_and_its_licence(name: str) -> None:
    workload = settings(f"workload={name}").workload
    assert workload.licence
    assert workload.path or workload.wheel or workload.dataset
    assert all(r is None or re.fullmatch("[0-9a-f]{40}", r) for r in workload.revisions)


def test_the_papers_sets_are_there() -> None:
    named = {"humaneval", "mbpp", "gsm8k", "math500", "aime", "livecodebench", "mt_bench", "alpaca"}
    assert named | {"spec_bench", "speed_bench", "shipped", "file"} <= {*options("workload")}


def test_the_groups_are_those_of_the_design() -> None:
    groups = {path.name for path in CONF.iterdir() if path.is_dir()} - {"local"}
    named = {"engine", "strategy", "model", "workload", "load", "host", "tracking", "report", "launcher", "experiment"}
    assert groups == named


def test_without_an_experiment_the_default_sweep_runs() -> None:
    assert composed() == composed("experiment=ddtree_sweep")


def test_the_default_sweep_covers_strategies_shapes_and_batch_sizes() -> None:
    sweep = settings().sweep
    assert sweep.strategy == ("autoregressive", "dflash", "eagle", "ddtree")
    for axis in (sweep.width, sweep.depth, sweep.nodes, sweep.batch_size):
        assert len(axis) >= 2
    assert sweep.temperature == (0.0, 1.0)
    assert settings("experiment=smoke").sweep.strategy == sweep.strategy


def test_an_experiment_is_overridden_by_the_command_line() -> None:
    changed = settings("experiment=smoke", "sweep.width=[3]", "strategy=ddtree", "seed=5")
    assert changed.sweep.width == (3,)
    assert changed.sweep.strategy == ("autoregressive", "dflash", "ddtree")
    assert changed.seed == 5


def test_private_values_come_from_local(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "default.yaml").write_text("# @package _global_\nengine: {threads: 7}\n")
    assert settings(f"hydra.searchpath=[file://{tmp_path}]").engine.threads == 7


@pytest.mark.parametrize("model", PUBLISHED)
def test_published_pairs(model: str) -> None:
    pair = settings(f"model={model}").model
    assert pair.kind == "checkpoint"
    assert pair.template == "chat"
    assert pair.dflash is not None
    for part in (pair.target, pair.dflash, pair.eagle):
        if part is not None:
            assert re.fullmatch(r"[\w-]+/[\w.-]+", part.source)
            assert part.revision is None or re.fullmatch(r"[0-9a-f]{40}", part.revision)
            assert part.licence
    assert pair.target.revision is not None
    assert pair_gib(pair) <= pair.memory_gib <= 1.06 * pair_gib(pair)


def test_all_published_pairs_are_there() -> None:
    assert {*PUBLISHED, "tiny", "tiny_hybrid", "tiny_untrained"} == set(options("model"))


@pytest.mark.parametrize(
    ("model", "block_size", "mask", "thinking", "eagle"),
    [
        ("qwen3_4b", 16, 151669, False, True),
        ("qwen3_8b", 16, 151669, False, True),
        ("qwen3_coder_30b_a3b", 16, 151669, None, True),
        ("llama31_8b", 10, None, None, True),
        ("qwen36_27b", 16, 248070, False, False),
        ("qwen36_35b_a3b", 16, 248070, False, False),
    ],
)
def test_what_is_known_of_the_drafters(
    model: str, block_size: int, mask: int | None, thinking: bool | None, eagle: bool
) -> None:
    pair = settings(f"model={model}").model
    assert pair.dflash is not None
    assert (pair.dflash.block_size, pair.dflash.mask_token_id, pair.thinking) == (block_size, mask, thinking)
    assert (pair.eagle is not None) == eagle


def test_the_tiny_pair_is_described_as_it_is() -> None:
    from safetensors import safe_open

    pair = settings().model
    assert pair.dflash is not None
    assert pair.eagle is not None
    for part in (pair.target, pair.dflash, pair.eagle):
        folder = asset_path(part.source)
        config = json.loads((folder / "config.json").read_text())
        assert config["num_hidden_layers"] == part.layers
        with safe_open(folder / "model.safetensors", framework="np") as weights:
            sizes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
        params = 0
        for shape in sizes.values():
            count = 1
            for side in shape:
                count *= side
            params += count
        assert params == pytest.approx(part.params, rel=0.02)
    target = json.loads((asset_path(pair.target.source) / "config.json").read_text())
    block = json.loads((asset_path(pair.dflash.source) / "config.json").read_text())
    assert target["vocab_size"] == pair.target.vocab_size
    assert target["num_key_value_heads"] == pair.target.kv_heads
    assert target["head_dim"] == pair.target.head_dim
    assert target["max_position_embeddings"] == pair.context_length
    assert block["block_size"] == pair.dflash.block_size
