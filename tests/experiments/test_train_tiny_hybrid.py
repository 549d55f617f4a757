"""The hybrid pair's training: what it takes from its teacher, its clock, its bar, and a whole training in little."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from safetensors.torch import save_file
from transformers import PreTrainedModel

import ddbench
from ddbench.__main__ import conf_folder
from ddbench.decoding import Request, Sampling, Strategy, decode, load_pair
from ddbench.errors import ConfigError
from experiments.train_tiny import run
from experiments.train_tiny.bar import ship, shortfalls
from experiments.train_tiny.config import BarConfig, DFlashTrainConfig, HybridConfig, TargetConfig, TrainConfig
from experiments.train_tiny.dflash import dflash_json, new_dflash
from experiments.train_tiny.hybrid import delta_nets, layer_kinds
from experiments.train_tiny.inherit import inherit_drafter, inherit_target
from experiments.train_tiny.pace import paced
from experiments.train_tiny.target import new_target
from experiments.typed import build

TOKENIZER = Path(ddbench.__file__).parent / "assets" / "target"
HYBRID = HybridConfig(interval=2, key_heads=1, value_heads=2, head_dim=32, conv_kernel=4, rotary_share=1.0)
SMALL = [
    "train_tiny.device=cpu",
    "train_tiny.workers=1",
    "train_tiny.corpus.only=[omegaconf,jinja2]",
    "train_tiny.corpus.held_out=[jinja2]",
    "train_tiny.corpus.evaluation_prompts=1",
    "train_tiny.corpus.prompts_per_category=1",
    "train_tiny.corpus.warmup_per_category=1",
    "train_tiny.target.hidden_size=64",
    "train_tiny.target.intermediate_size=64",
    "train_tiny.target.layers=4",
    "train_tiny.target.heads=2",
    "train_tiny.target.kv_heads=1",
    "train_tiny.target.head_dim=32",
    "train_tiny.target.row_tokens=64",
    "train_tiny.target.hybrid.interval=2",
    "train_tiny.target.hybrid.key_heads=1",
    "train_tiny.target.hybrid.value_heads=2",
    "train_tiny.target.hybrid.head_dim=32",
    "train_tiny.teacher.layers=[0,1,2,3]",
    "train_tiny.teacher.taps=[0,1,2]",
    "train_tiny.teacher.sequences=16",
    "train_tiny.teacher.seconds=null",
    "train_tiny.teacher.steps=2",
    "train_tiny.teacher.batch=4",
    "train_tiny.teacher.real_rows=2",
    "train_tiny.unloop.rounds=1",
    "train_tiny.unloop.sequences=8",
    "train_tiny.unloop.steps=1",
    "train_tiny.unloop.batch=4",
    "train_tiny.distil.prompts=9",
    "train_tiny.distil.candidates=2",
    "train_tiny.distil.max_repeated=1.0",
    "train_tiny.distil.steps=1",
    "train_tiny.distil.real_rows=2",
    "train_tiny.generate.sequences=16",
    "train_tiny.generate.batch=8",
    "train_tiny.generate.validation=4",
    "train_tiny.generate.prompt_lengths=[16,20,24]",
    "train_tiny.generate.new_tokens=24",
    "train_tiny.dflash.layers=1",
    "train_tiny.dflash.intermediate_size=64",
    "train_tiny.dflash.block_size=8",
    "train_tiny.dflash.taps=[0,1,2]",
    "train_tiny.dflash.batch=4",
    "train_tiny.dflash.anchors=4",
    "train_tiny.dflash.steps=2",
]


def composed(*overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config = compose("config", overrides=["experiment=train_tiny_hybrid", *overrides])
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return plain  # type: ignore[return-value]


def sizes(layers: int, intermediate: int, hybrid: HybridConfig | None) -> TargetConfig:
    settings = composed()["train_tiny"]["target"] | {"hidden_size": 64, "heads": 2, "kv_heads": 1, "head_dim": 32}
    config = build(TargetConfig, settings | {"layers": layers, "intermediate_size": intermediate, "hybrid": None})
    return TargetConfig(**{**config.__dict__, "hybrid": hybrid})


def drafter_settings(layers: int, intermediate: int) -> DFlashTrainConfig:
    settings = composed(*SMALL)["train_tiny"]["dflash"]
    return build(DFlashTrainConfig, settings | {"layers": layers, "intermediate_size": intermediate})


@pytest.fixture(scope="module")
def teacher() -> PreTrainedModel:
    torch.manual_seed(1)
    return new_target(sizes(4, 96, None), 4096, end_id=0, pad_id=2).eval()


@pytest.fixture(scope="module")
def teacher_folder(teacher: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense pair of random weights in the format of the shipped one, with the shipped tokenizer."""
    folder = tmp_path_factory.mktemp("teacher")
    teacher.save_pretrained(folder / "target")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / "target" / name)
    settings = drafter_settings(2, 96)
    drafter = new_dflash(teacher, settings, mask_token_id=1, seed=2)
    (folder / "dflash").mkdir()
    weights = {name: value for name, value in drafter.state_dict().items() if not name.startswith("rotary.")}
    save_file(weights, folder / "dflash" / "model.safetensors", metadata={"format": "pt"})
    (folder / "dflash" / "config.json").write_text(json.dumps(dflash_json(teacher, settings, 1)))
    return folder


def test_a_training_in_little_makes_a_hybrid_pair_that_decodes_losslessly(tmp_path: Path, teacher_folder: Path) -> None:
    places = [f"train_tiny.output={tmp_path / 'models'}", f"train_tiny.work={tmp_path / 'work'}"]
    lessons = [f"train_tiny.teacher.{part}={teacher_folder / part}" for part in ("target", "dflash")]
    run(composed(*SMALL, *places, *lessons), "test")
    models = tmp_path / "models"
    written = json.loads((models / "target" / "config.json").read_text())
    assert written["architectures"] == ["Qwen3_5ForCausalLM"]
    assert written["full_attention_interval"] == 2
    assert written["layer_types"] == layer_kinds(4, 2)
    card = (models / "README.md").read_text()
    assert "experiment=train_tiny_hybrid" in card
    assert "| teach |" in card
    assert "| unloop, pass 1 |" in card
    assert "| distil, pass 2 |" in card
    assert "EAGLE" not in card
    work = {name: json.loads((tmp_path / "work" / f"{name}.json").read_text()) for name in ("distil", "dflash")}
    assert [set(each) for each in work["distil"]["earlier"]] == [{"history", "stage_seconds", "hardware"}]
    assert "earlier" not in work["dflash"], "named once"
    measured = json.loads((tmp_path / "work" / "evidence.json").read_text())["measured"]
    assert measured["earlier_passes"]["distil"] == work["distil"]["earlier"]
    both = work["distil"]["earlier"][0]["stage_seconds"] + work["distil"]["stage_seconds"]
    assert measured["stage_seconds"]["distil"] == round(both, 1)
    taught = json.loads((tmp_path / "work" / "teach.json").read_text())["history"]
    assert [entry["step"] for entry in taught] == [0, 1]

    pair = load_pair(models / "target", dflash=models / "dflash")
    records = [json.loads(line) for line in (models / "prompts.jsonl").read_text().splitlines()]
    requests = [
        Request(r["id"], tuple(pair.tokenizer(r["turns"][0])["input_ids"]), 12, Sampling(), frozenset([0]))
        for r in records[:3]
    ]
    plain = decode(pair, Strategy("autoregressive"), requests, 2)
    for strategy in (Strategy("dflash"), Strategy("ddtree", nodes=8)):
        assert [g.output_token_ids for g in decode(pair, strategy, requests, 2)] == [g.output_token_ids for g in plain]

    with pytest.raises(ConfigError, match="a pair that reaches it"):  # untrained weights draft nothing right
        run(
            composed(*SMALL, *places, *lessons, "train_tiny.stages=[ship]", f"train_tiny.ship_to={tmp_path / 'x'}"), "t"
        )
    assert not (tmp_path / "x").exists()


@torch.no_grad()
def test_full_attention_layers_start_as_their_teachers(teacher: PreTrainedModel) -> None:
    model = new_target(sizes(4, 96, HYBRID), 4096, 0, 2).eval()
    inherit_target(model, teacher, [0, 1, 2, 3])
    hidden = torch.randn(2, 9, 64)
    positions = torch.arange(9).expand(2, -1)
    rotary = teacher.base_model.rotary_emb(hidden, positions)
    for index in (1, 3):
        own, theirs = model.base_model.layers[index], teacher.base_model.layers[index]
        mine = own(hidden, position_embeddings=rotary, attention_mask=None, position_ids=positions)
        expected = theirs(hidden, position_embeddings=rotary, attention_mask=None, position_ids=positions)
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-5)
    assert len(delta_nets(model)) == 2


@torch.no_grad()
def test_a_narrower_mlp_keeps_the_strongest_neurons(teacher: PreTrainedModel) -> None:
    model = new_target(sizes(2, 32, HYBRID), 4096, 0, 2)
    inherit_target(model, teacher, [1, 2])
    source, kept = teacher.base_model.layers[2].mlp, model.base_model.layers[1].mlp
    strength = [
        float(
            source.gate_proj.weight[i].norm() * source.up_proj.weight[i].norm() * source.down_proj.weight[:, i].norm()
        )
        for i in range(96)
    ]
    expected = sorted(sorted(range(96), key=lambda i: -strength[i])[:32])
    assert torch.equal(kept.gate_proj.weight, source.gate_proj.weight[expected])
    assert torch.equal(kept.down_proj.weight, source.down_proj.weight[:, expected])


@torch.no_grad()
def test_a_drafter_of_the_same_size_is_the_teachers(teacher: PreTrainedModel) -> None:
    first, second = (new_dflash(teacher, drafter_settings(2, 96), 1, seed) for seed in (1, 2))
    inherit_drafter(second, first)
    theirs = first.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in second.state_dict().items())


def test_what_does_not_fit_the_teacher_is_refused(teacher: PreTrainedModel, tmp_path: Path) -> None:
    places = ["train_tiny.device=cpu", "train_tiny.stages=[lessons]"]
    places += [f"train_tiny.output={tmp_path / 'models'}", f"train_tiny.work={tmp_path / 'work'}"]
    model = new_target(sizes(4, 96, HYBRID), 4096, 0, 2)
    with pytest.raises(ConfigError, match="4 layers of the teacher's 4"):
        inherit_target(model, teacher, [0, 1, 4])
    with pytest.raises(ConfigError, match=r"interval=9.*2 to 4"):
        new_target(sizes(4, 96, HybridConfig(9, 1, 2, 32, 4, 1.0)), 4096, 0, 2)
    with pytest.raises(ConfigError, match="a multiple of key_heads"):
        new_target(sizes(4, 96, HybridConfig(2, 2, 3, 32, 4, 1.0)), 4096, 0, 2)
    with pytest.raises(ConfigError, match=r"train_tiny\.teacher"):
        run(composed(*places, "train_tiny.teacher=null"), "test")
    with pytest.raises(ConfigError, match="no other learns from a teacher"):
        run(composed(*places, "train_tiny.target.hybrid=null"), "test")


def test_the_clock_ends_a_training_with_its_schedule_run_down(monkeypatch: pytest.MonkeyPatch) -> None:
    by_step = list(paced(21, None, 4))
    assert [turn.place for turn in by_step] == [float(step) for step in range(21)]
    assert [turn.step for turn in by_step if turn.note] == [0, 5, 10, 15, 20]

    now = iter(range(1000))
    monkeypatch.setattr("experiments.train_tiny.pace.time.perf_counter", lambda: float(next(now)))
    by_clock = list(paced(1000, 10.0, 5))
    assert [turn.step for turn in by_clock] == list(range(9))  # a second each; the tenth is never begun
    assert [turn.place for turn in by_clock] == [100.0 * second for second in range(1, 10)]
    assert sum(turn.note for turn in by_clock) == 5


GOOD = {
    "loop_share": 0.1,
    "acceptance_length": {
        "dflash_chain": {"all": 4.0, "lossless_share": 1.0},
        "ddtree_64": {"all": 5.4, "lossless_share": 1.0},
    },
}


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("acceptance_length", "dflash_chain", "all"), 3.4, "chain emits"),
        (("acceptance_length", "ddtree_64", "all"), 5.1, "DDTree"),
        (("acceptance_length", "ddtree_64", "lossless_share"), 0.99, "lossless"),
        (("loop_share",), 0.21, "loop"),
    ],
)
def test_the_bar_names_what_is_missed(tmp_path: Path, path: tuple[str, ...], value: float, word: str) -> None:
    bar = build(TrainConfig, composed()["train_tiny"]).bar
    assert shortfalls(bar, GOOD) == []
    worse: dict[str, Any] = json.loads(json.dumps(GOOD))
    place = worse
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert [word in each for each in shortfalls(bar, worse)] == [True]


def test_a_pair_at_the_bar_is_shipped_if_it_is_small_enough(tmp_path: Path) -> None:
    bar = build(BarConfig, composed()["train_tiny"]["bar"])
    models, place = tmp_path / "models", tmp_path / "place"
    for name in ("target", "dflash"):
        (models / name).mkdir(parents=True)
        (models / name / "model.safetensors").write_bytes(name.encode())
    (models / "README.md").write_text("card")
    (place / "target").mkdir(parents=True)
    (place / "target" / "old.bin").write_text("of an earlier pair")
    found = ship(models, place, bar, GOOD)
    assert found["parts"] == ["target", "dflash", "README.md"]
    assert sorted(path.name for path in (place / "target").iterdir()) == ["model.safetensors"]
    (models / "target" / "model.safetensors").write_bytes(b"0" * int(12.1 * 2**20))
    with pytest.raises(ConfigError, match=r"12\.0 MiB together"):
        ship(models, place, bar, GOOD)
