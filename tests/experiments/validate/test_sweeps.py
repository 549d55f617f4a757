"""What the two sweeps of a validation are told, held against what their predictions were made for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tokenizers import Tokenizer

from ddbench.__main__ import conf_folder
from ddbench.errors import ConfigError
from experiments.engines import engine_of
from experiments.settings import load_settings
from experiments.shapes import grid
from experiments.validate import measure, sweeps
from experiments.validate.predictions import read_machines
from experiments.validate.verdict import Missing

PLAN = read_machines()["pro6000_workstation"].rounds


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config: Any = OmegaConf.to_container(
            compose("config", ["experiment=pro6000_validate", *overrides]), resolve=True
        )
    return {key: value for key, value in config.items() if key != "validate"}


@pytest.mark.parametrize("engine", sorted(sweeps.DUMMY))
def test_random_weights_at_real_dimensions(engine: str, tmp_path: Path) -> None:
    assert PLAN is not None
    settings = load_settings(sweeps.rounds(composed(f"engine={engine}"), PLAN, tmp_path, engine), "id")
    assert (settings.engine.dtype, settings.sweep.batch_size) == ("bfloat16", (1, 8, 32))
    assert settings.load.ignore_eos
    flags = engine_of(engine).flags(settings, [])
    assert flags["extra_args"][-2:] == ["--load-format", "dummy"]
    if engine == "vllm":
        assert (flags["kv_cache_gib"], flags["block_size"], flags["attention_backend"]) == (4.0, 16, "TRITON_ATTN")
    found = [
        (strategy, shape.nodes or shape.depth)
        for strategy in settings.sweep.strategy
        for shape, _ in _shapes(settings, strategy)
    ]
    assert found == [("autoregressive", None), ("dflash", 15), ("ddtree", 15), ("ddtree", 63)]
    if engine == "sglang":  # of what was predicted: the pool that a server is given
        shapes = [(strategy, shape) for strategy in settings.sweep.strategy for shape, _ in _shapes(settings, strategy)]
        lines = {one.key: one for one in read_machines()["pro6000_workstation_sglang"].predictions}
        assert engine_of(engine).flags(settings, shapes)["kv_tokens"] == lines["kv_tokens.ddtree_64"].low
    tokenizer = Tokenizer.from_file(str(tmp_path / "target" / "tokenizer.json"))
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert len({row["turns"][0] for row in rows}) == 32
    assert {abs(len(tokenizer.encode(row["turns"][0]).ids) - sweeps.PROMPT_TOKENS) <= 4 for row in rows} == {True}
    config = json.loads((tmp_path / "dflash" / "config.json").read_text())
    assert (config["block_size"], config["dflash_config"]["mask_token_id"]) == (16, settings.model.dflash.mask_token_id)  # type: ignore[union-attr]


def _shapes(settings: Any, strategy: str) -> Any:
    return grid(strategy, settings.sweep, settings.model, False)


def test_the_tiny_pair() -> None:
    plan = read_machines()["h200"].tiny
    trees, chain = (load_settings(each, "id") for each in sweeps.tiny(composed("engine=vllm"), plan, None, None))
    assert {each.engine.dtype for each in (trees, chain)} == {"float32"}
    assert (trees.report.build, chain.report.build) == (False, True)  # the second's shows both
    served = read_machines()["h200_sglang"].tiny
    (half, _) = (load_settings(each, "id") for each in sweeps.tiny(composed("engine=sglang"), served, None, None))
    assert half.engine.dtype == "bfloat16"
    assert engine_of("sglang").flags(half, [])["context_length"] == 2048
    (whole, _) = (load_settings(each, "id") for each in sweeps.tiny(composed("engine=sglang"), plan, None, None))
    with pytest.raises(ConfigError, match=r"engine\.dtype='float32': bfloat16: SGLang's norm kernels have no"):
        engine_of("sglang").flags(whole, [])
    assert (trees.sweep.nodes, trees.load.max_new_tokens, trees.workload.max_prompts) == ((15, 63), 128, None)
    assert (chain.sweep.strategy, chain.sweep.width, chain.sweep.nodes) == (("autoregressive", "eagle"), (1,), (5,))


def test_an_arm_has_a_name() -> None:
    class Row:
        strategy, depth, nodes = "ddtree", 15, 63

    assert measure.arm_of(Row) == "ddtree_64"
    Row.strategy, Row.nodes = "dflash", None  # type: ignore[assignment]
    assert measure.arm_of(Row) == "dflash_16"
    Row.strategy, Row.depth = "autoregressive", None  # type: ignore[assignment]
    assert measure.arm_of(Row) == "autoregressive"
    Row.status, Row.reason = "unsupported", "no such kernel"  # type: ignore[attr-defined]
    assert measure._unmeasured(Row) == Missing("unsupported: no such kernel")
