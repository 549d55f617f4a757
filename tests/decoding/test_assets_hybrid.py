"""The shipped hybrid pair: small enough, at its bar, and lossless on the shipped prompts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import ddbench
from ddbench.__main__ import conf_folder
from ddbench.decoding import Generation, ModelPair, Request, Sampling, Strategy, decode, load_pair
from experiments.train_tiny.bar import shortfalls, size_mib
from experiments.train_tiny.config import BarConfig
from experiments.typed import build

ROOT = Path(__file__).resolve().parents[2]
ASSETS = Path(ddbench.__file__).parent / "assets"
HYBRID = ASSETS / "hybrid"
EVIDENCE = ROOT / "docs" / "evidence" / "train_tiny_hybrid.json"


@pytest.fixture(scope="module")
def bar() -> BarConfig:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", overrides=["experiment=train_tiny_hybrid"])
    return build(BarConfig, OmegaConf.to_container(config.train_tiny.bar, resolve=True))


@pytest.fixture(scope="module")
def shipped() -> ModelPair:
    return load_pair(HYBRID / "target", HYBRID / "dflash")


def requests_of(pair: ModelPair, every: int, new_tokens: int) -> list[Request]:
    """Each ``every``-th shipped prompt: all categories, since they follow one another in the file."""
    lines = (ASSETS / "prompts.jsonl").read_text(encoding="utf-8").splitlines()[::every]
    records = [json.loads(line) for line in lines]
    stop_ids = frozenset([pair.target.generation_config.eos_token_id])
    return [
        Request(each["id"], tuple(pair.tokenizer(each["turns"][0])["input_ids"]), new_tokens, Sampling(), stop_ids)
        for each in records
    ]


def emitted_per_round(done: list[Generation]) -> float:
    return sum(len(each.output_token_ids) - 1 for each in done) / sum(len(each.rounds) for each in done)


def test_it_is_small_and_its_evaluation_reaches_the_bar(bar: BarConfig) -> None:
    assert size_mib(HYBRID) <= bar.max_mib
    evidence = json.loads(EVIDENCE.read_text())
    assert shortfalls(bar, evidence["measured"]["evaluation"]) == []
    chain = evidence["measured"]["evaluation"]["acceptance_length"]["dflash_chain"]["all"]
    assert f"| dflash_chain | {chain:.2f} |" in (HYBRID / "README.md").read_text()


def test_its_layers_are_of_both_kinds_and_its_tokens_are_the_dense_pairs() -> None:
    config = json.loads((HYBRID / "target" / "config.json").read_text())
    assert set(config["layer_types"]) == {"linear_attention", "full_attention"}
    assert config["layer_types"][config["full_attention_interval"] - 1] == "full_attention"
    own, dense = (json.loads((each / "target" / "tokenizer.json").read_text()) for each in (HYBRID, ASSETS))
    assert own["model"] == dense["model"]


def test_some_shipped_prompts_are_decoded_losslessly(shipped: ModelPair, toys: SimpleNamespace) -> None:
    requests = requests_of(shipped, every=18, new_tokens=24)
    expected = [toys.reference(shipped.target, request) for request in requests]
    for strategy in (Strategy("autoregressive"), Strategy("dflash"), Strategy("ddtree", nodes=16)):
        out = decode(shipped, strategy, requests, 4)
        assert [each.output_token_ids for each in out] == expected, strategy.name


@pytest.mark.slow
def test_every_shipped_prompt_is_lossless_and_drafts_as_the_card_says(shipped: ModelPair, bar: BarConfig) -> None:
    """The shipped prompts are part of those of the evaluation, loops among them: a tenth below the bar is allowed."""
    requests = requests_of(shipped, every=1, new_tokens=64)
    plain = decode(shipped, Strategy("autoregressive"), requests, 16)
    lengths = {}
    for strategy in (Strategy("dflash"), Strategy("ddtree", nodes=64)):
        done = decode(shipped, strategy, requests, 16)
        assert [each.output_token_ids for each in done] == [each.output_token_ids for each in plain], strategy.name
        lengths[strategy.name] = emitted_per_round(list(done))
    assert lengths["dflash"] >= 0.9 * bar.chain
    assert lengths["ddtree"] >= 0.9 * bar.tree * lengths["dflash"]
