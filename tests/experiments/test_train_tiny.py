"""The training programme: its rules on real text, and a whole training in little."""

from __future__ import annotations

import importlib.metadata
import json
import random
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from ddbench.__main__ import conf_folder
from ddbench.decoding import Request, Sampling, Strategy, decode, load_pair
from ddbench.errors import ConfigError
from experiments.train_tiny import run
from experiments.train_tiny.corpus import CATEGORIES, installed_sources, permissive_licence, read_units
from experiments.train_tiny.eagle3 import draft_vocabulary
from experiments.train_tiny.generate import Continuations
from experiments.train_tiny.loops import is_loop, loop_start, repeated_share, repeated_tokens
from experiments.train_tiny.validate import block_mask

SMALL = [
    "train_tiny.device=cpu",
    "train_tiny.workers=1",
    "train_tiny.corpus.only=[hydra-core,omegaconf,jinja2]",
    "train_tiny.corpus.held_out=[jinja2]",
    "train_tiny.corpus.vocab_size=512",
    "train_tiny.corpus.evaluation_prompts=12",
    "train_tiny.target.hidden_size=64",
    "train_tiny.target.intermediate_size=96",
    "train_tiny.target.heads=2",
    "train_tiny.target.kv_heads=1",
    "train_tiny.target.head_dim=32",
    "train_tiny.target.batch=4",
    "train_tiny.target.row_tokens=64",
    "train_tiny.target.steps=4",
    "train_tiny.target.compile=false",
    "train_tiny.unloop.rounds=1",
    "train_tiny.unloop.sequences=16",
    "train_tiny.unloop.steps=1",
    "train_tiny.unloop.batch=4",
    "train_tiny.first_drafter.sequences=16",
    "train_tiny.first_drafter.steps=2",
    "train_tiny.distil.rounds=1",
    "train_tiny.distil.prompts=10",
    "train_tiny.distil.candidates=2",
    "train_tiny.distil.max_repeated=1.0",
    "train_tiny.distil.steps=1",
    "train_tiny.distil.real_rows=2",
    "train_tiny.generate.sequences=16",
    "train_tiny.generate.batch=8",
    "train_tiny.generate.validation=4",
    "train_tiny.generate.prompt_lengths=[16,20,24]",
    "train_tiny.generate.new_tokens=48",
    "train_tiny.dflash.intermediate_size=96",
    "train_tiny.dflash.block_size=8",
    "train_tiny.dflash.batch=4",
    "train_tiny.dflash.steps=2",
    "train_tiny.dflash.compile=false",
    "train_tiny.eagle3.intermediate_size=96",
    "train_tiny.eagle3.draft_vocab_size=256",
    "train_tiny.eagle3.batch=4",
    "train_tiny.eagle3.steps=2",
]


def composed(*overrides: str) -> dict[str, object]:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", overrides=["experiment=train_tiny", *SMALL, *overrides])
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return plain  # type: ignore[return-value]


@pytest.mark.slow
def test_a_training_in_little_makes_a_pair_that_decodes_losslessly(tmp_path: Path) -> None:
    folders = [f"train_tiny.output={tmp_path / 'models'}", f"train_tiny.work={tmp_path / 'work'}"]
    run(composed(*folders), "test")
    models = tmp_path / "models"
    found = json.loads((tmp_path / "work" / "evaluate.json").read_text())
    assert found["prompts"] > 0
    card = (models / "README.md").read_text()
    assert "jinja2" in card
    assert "| ddtree_64 |" in card or found["loop_share"] == 1.0
    records = [json.loads(line) for line in (models / "prompts.jsonl").read_text().splitlines()]
    assert {record["category"] for record in records} <= set(CATEGORIES)
    assert {record["meta"]["source"] for record in records} == {"jinja2"}

    pair = load_pair(models / "target", dflash=models / "dflash", eagle=models / "eagle3")
    requests = [
        Request(r["id"], tuple(pair.tokenizer(r["turns"][0])["input_ids"]), 12, Sampling(), frozenset([0]))
        for r in records[:3]
    ]
    plain = decode(pair, Strategy("autoregressive"), requests, 2)
    for strategy in (Strategy("ddtree", nodes=8), Strategy("eagle", width=2, depth=3, nodes=5)):
        tree = decode(pair, strategy, requests, 2)
        assert [g.output_token_ids for g in tree] == [g.output_token_ids for g in plain]

    # The same programme trains drafters for a target that is given, and trains no target.
    before = (models / "target" / "model.safetensors").read_bytes()
    given = [f"train_tiny.output={tmp_path / 'others'}", f"train_tiny.work={tmp_path / 'other_work'}"]
    run(composed(*given, f"train_tiny.target.path={models / 'target'}"), "test")
    assert (models / "target" / "model.safetensors").read_bytes() == before
    assert not (tmp_path / "others" / "target").exists()
    load_pair(models / "target", dflash=tmp_path / "others" / "dflash", eagle=tmp_path / "others" / "eagle3")


def test_an_unknown_stage_and_a_missing_gpu_are_refused() -> None:
    with pytest.raises(ConfigError, match="stages='sleep'"):
        run(composed("train_tiny.stages=[corpus,sleep]"), "test")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA GPU"):
            run(composed("train_tiny.device=cuda"), "test")


def test_only_permissive_licences_are_read() -> None:
    def metadata(**fields: str) -> importlib.metadata.PackageMetadata:
        from email.message import Message

        message = Message()
        for name, value in fields.items():
            message[name.replace("_", "-")] = value
        return message  # type: ignore[return-value]

    assert permissive_licence(metadata(License_Expression="MIT")) == "MIT"
    assert permissive_licence(metadata(Classifier="License :: OSI Approved :: BSD License")) == "BSD License"
    assert permissive_licence(metadata(License="Mozilla Public License 2.0")) is None
    assert permissive_licence(metadata(License_Expression="MIT OR LGPL-3.0-only")) is None
    assert permissive_licence(metadata()) is None


def test_units_are_complete_and_do_not_depend_on_the_number_of_workers() -> None:
    sources = installed_sources(["jinja2", "omegaconf"])
    assert [source.name for source in sources] == ["jinja2", "omegaconf"]
    one, two = (read_units(sources, 100_000, workers) for workers in (1, 2))
    assert one == two
    assert {"code", "docstrings", "structured"} <= {unit.category for unit in one}
    assert len({unit.text for unit in one}) == len(one)
    assert all(json.loads(unit.text)["parameters"] for unit in one if unit.category == "structured")


def test_loops_are_found_and_ordinary_text_is_not_a_loop() -> None:
    rng = random.Random(1)
    text = [rng.randrange(1000) for _ in range(128)]
    assert not is_loop(text)
    for period in (1, 5, 24):
        looping = text[:50] + text[:period] * (96 // period)
        start = loop_start(looping)
        assert start is not None
        assert start >= 50
        assert all(looping[i] == looping[i - period] for i in range(50 + period, len(looping)))
    assert loop_start(text[:50] + text[:25] * 8) is None  # longer than the longest period
    counted = [token for number in range(14) for token in (1, 2, 3, 4, 5, 6, 7, 8, number + 100)]
    assert loop_start(counted) is None
    assert 0 < repeated_share(counted) < 0.5  # one 8-gram in nine comes back
    assert repeated_tokens([1, 2, 3, 4, 5, 6, 7, 8] * 2) == [False] * 15 + [True]
    assert repeated_share([]) == 0.0


def test_a_block_sees_features_before_its_anchor_and_itself_alone() -> None:
    mask = block_mask(torch.tensor([[2, 5]]), length=6, block_size=3)[0, 0]
    for block, anchor in enumerate((2, 5)):
        rows = mask[block * 3 : block * 3 + 3]
        assert rows[:, :6].tolist() == [[position < anchor for position in range(6)]] * 3
        assert rows[:, 6:].tolist() == [[column // 3 == block for column in range(6)]] * 3


def test_the_draft_vocabulary_is_the_most_frequent_tokens() -> None:
    tokens = torch.tensor([[3, 3, 3, 1, 1, 7]])
    data = Continuations(tokens, torch.tensor([1]), torch.tensor([6]))
    assert draft_vocabulary(data, 8, 3).tolist() == [1, 3, 7]
