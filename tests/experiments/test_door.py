"""Bad input through a real process: one line, exit 2, nothing started, nothing lost."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest


def refused(ended: Any, *words: str) -> None:
    assert ended.code == 2, ended.err
    (line,) = ended.errors
    assert line.startswith("error: ")
    for word in words:
        assert word in line
    assert ended.out == ""


# Some of each kind; the whole table, in one process, is tests/conf/test_bad_configurations.py.
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sweep.widht=[3]", ["sweep.widht", "unknown key", "sweep.width"]),
        ("model=gpt5", ["model='gpt5'", "tiny", "qwen3_8b"]),
        ("sweep.width=[1", ["sweep.width=[1", "not a Hydra override"]),
        ("=3", ["error"]),
        ("sweep.width=[0]", ["sweep.width=0", ">= 1"]),
        ("seed=${nowhere}", ["nowhere"]),
        ("model.target.source=/nowhere model.kind=checkpoint", ["model.target.source='/nowhere'"]),
        ("sweep.width=[2] sweep.depth=[8] sweep.nodes=[8]", ["depth 8 >= block size 8"]),
    ],
)
def test_one_line_and_exit_2(ddbench: Any, override: str, words: list[str]) -> None:
    refused(ddbench.run(*override.split(" ")), *words)
    assert not (ddbench.folder / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["the file is empty"]),
        ("\n\n", ["the file is empty"]),
        ("not json\n", ["bad.jsonl:1", "JSON object"]),
        ('["a"]\n', ["bad.jsonl:1", "JSON object"]),
        ('{"id": "a", "dataset": "d", "category": "c", "turns": ["x"]}\n{"id": "b"}\n', ["bad.jsonl:2", "'turns'"]),
        ('{"id": "a", "dataset": "", "category": "c", "turns": ["x"]}\n', ["bad.jsonl:1", "'dataset'"]),
        ('{"id": "a", "dataset": "d", "category": 3, "turns": ["x"]}\n', ["bad.jsonl:1", "'category'"]),
        ('{"id": "a", "dataset": "d", "category": "c", "turns": []}\n', ["bad.jsonl:1", "'turns'"]),
        ('{"id": "a", "dataset": "d", "category": "c", "turns": [3]}\n', ["bad.jsonl:1", "'turns'"]),
        ('{"id": 7, "dataset": "d", "category": "c", "turns": ["x"]}\n', ["bad.jsonl:1", "'id'"]),
        ('{"id": "a", "dataset": "d", "category": "c", "turns": ["x"]}\n' * 2, ["'a' comes twice"]),
    ],
)
def test_bad_prompt_files(ddbench: Any, text: str, words: list[str]) -> None:
    path = ddbench.folder / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    refused(ddbench.run(f"workload.path={path}"), "workload.path", *words)


def test_warm_up_must_not_be_measured(ddbench: Any) -> None:
    refused(
        ddbench.run(f"workload.warmup_path={ddbench.folder / 'prompts.jsonl'}", "workload.max_prompts=null"), "warmup"
    )


def test_unwritable_folder(ddbench: Any) -> None:
    blocker = ddbench.folder / "file"
    blocker.write_text("not a folder")
    refused(ddbench.run(f"output_dir={blocker}"), "output_dir", "can be written")
    if os.geteuid() != 0:
        locked = ddbench.folder / "locked"
        locked.mkdir(mode=0o500)
        refused(ddbench.run(f"output_dir={locked}"), "output_dir", "can be written")


def test_prompt_longer_than_the_context(ddbench: Any) -> None:
    record = {"id": "long", "dataset": "d", "category": "c", "turns": ["x" * 600]}
    path = ddbench.folder / "long.jsonl"
    path.write_text(json.dumps(record) + "\n")
    refused(
        ddbench.run(f"workload.path={path}"), f"workload.path='{path}': prompt 'long' of 1 to 506 tokens", "it has 600"
    )
    assert not (ddbench.folder / "out").exists()


def test_more_new_tokens_than_the_context(ddbench: Any) -> None:
    refused(ddbench.run("load.max_new_tokens=5000"), "load.max_new_tokens=5000", "context of 512")


def test_damaged_target(ddbench: Any, tmp_path: Path) -> None:
    from runners.random_models import write_random_pair

    pair = write_random_pair(tmp_path, seed=0, context_length=512)
    (pair.target / "model.safetensors").write_text("junk")
    sources = [f"model.{name}.source={getattr(pair, name)}" for name in ("target", "dflash", "eagle")]
    refused(ddbench.run("model.kind=checkpoint", *sources), "model.target.source")


def test_the_reference_engine_has_no_other_python(ddbench: Any) -> None:
    refused(ddbench.run("engine.python=/usr/bin/python3"), "engine.python='/usr/bin/python3'")


def test_wrong_vocabulary(ddbench: Any) -> None:
    refused(ddbench.run("model.target.vocab_size=4096"), "model.target.vocab_size=4096", "320")


def test_drafter_of_another_target(ddbench: Any, tmp_path: Path) -> None:
    from runners.random_models import write_random_pair

    pair = write_random_pair(tmp_path, seed=0, context_length=512)
    config = json.loads((pair.dflash / "config.json").read_text())
    (pair.dflash / "config.json").write_text(json.dumps({**config, "vocab_size": 384}))
    sources = [f"model.{name}.source={getattr(pair, name)}" for name in ("target", "dflash", "eagle")]
    refused(ddbench.run("model.kind=checkpoint", *sources), "model.dflash.source", "vocabulary")


def test_a_refusal_leaves_an_earlier_run_alone(ddbench: Any) -> None:
    folder = ddbench.path("kept")
    (folder / "cells").mkdir(parents=True)
    (folder / "config.yaml").write_text("as it was\n")
    refused(ddbench.run("run_id=kept", "sweep.width=[0]"), "sweep.width=0")
    assert (folder / "config.yaml").read_text() == "as it was\n"


def test_report_needs_a_run(ddbench: Any) -> None:
    refused(ddbench.bare("experiment=report"), "run=None")
    refused(ddbench.bare("experiment=report", "run=nowhere"), "run='nowhere'")


def test_help_and_cfg_work(ddbench: Any) -> None:
    shown = ddbench.bare("--help")
    assert shown.code == 0
    assert re.search(r"^experiment: .*\bddtree_sweep\b", shown.out, re.MULTILINE)
    config = ddbench.bare("--cfg", "job")
    assert config.code == 0
    assert "name: ddtree_sweep" in config.out
    assert ddbench.bare("--no-such-flag").code == 2
