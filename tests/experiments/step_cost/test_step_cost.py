"""``experiment=step_cost`` on random models, from evidence, and on engines that are processes (the stand-in's)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import ddbench as package
from ddbench.__main__ import conf_folder
from ddbench.cost import CostModel, load_cost
from ddbench.errors import ConfigError
from experiments.evidence import dummy_models
from experiments.step_cost import sglang
from experiments.step_cost.fingerprint import build_of, fingerprint
from experiments.step_cost.fleets import groups, halving
from experiments.step_cost.grid import Step, grid
from experiments.step_cost.run import run
from experiments.step_cost.settings import load
from runners.environments import our_hash

Make = Callable[..., dict[str, Any]]
ROOT = Path(package.__file__).parents[1]
STAND_IN = ROOT / "tests" / "runners" / "sglang" / "stand_in"
SMALL = (
    "model=tiny_untrained",
    "engine.threads=1",
    "sweep.nodes=[1,4]",
    "sweep.batch_size=[1,2]",
    "step_cost.context=[8,20]",
    "step_cost.prefill=[6,12]",
    "step_cost.steps=2",
    "step_cost.repeats=2",
)

HELD = (
    "model=qwen3_8b",
    "step_cost.evidence=docs/evidence/step_cost_h200.json",
    "step_cost.against=docs/evidence/sglang.json",
)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def composed(*overrides: str) -> dict[str, Any]:
        own = ["experiment=step_cost", f"output_dir={tmp_path}", *overrides]
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            config = compose("config", overrides=own)
        plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        return plain

    return composed


def test_the_reference_engine_is_measured(make: Make, tmp_path: Path) -> None:
    summary = run(make(*SMALL), "made")
    cost = load_cost(summary["cost"])
    assert set(cost.fits) == {"autoregressive", "dflash", "ddtree", "prefill"}
    tree = {(p.verify_width, p.batch, round(p.context) > 20) for p in cost.points["ddtree"]}
    assert tree == {(w, b, long) for w in (2, 5) for b in (1, 2) for long in (False, True)}
    assert {point.verify_width for point in cost.points["dflash"]} == {4, 8}  # 8: the whole block
    assert all(point.n == 2 and point.low <= point.ms <= point.high for point in cost.points["ddtree"])
    assert all(set(point.stages or ()) == {"draft", "build", "verify", "commit"} for point in cost.points["ddtree"])
    setup = cost.fingerprint
    assert setup["engine"] == "reference"
    assert setup["device"].startswith("cpu: ")
    assert setup["threads"] == "1"
    assert len(setup["build"]) == 16
    page = Path(summary["report"]).read_text()
    assert "Worst left out" in page
    assert (tmp_path / "step_cost" / "made" / "figures" / "step_cost.png").stat().st_size > 5000
    assert summary["fit"]["ddtree"]["worst_residual"] >= summary["fit"]["ddtree"]["median_residual"]
    with pytest.raises(ConfigError, match="a measurement is not gone on with"):
        run(make(*SMALL), "made")


def test_the_grid_is_whole_at_the_first_context_and_has_corners_at_others(make: Make) -> None:
    asked = load(make("sweep.nodes=[1,4,16]", "sweep.batch_size=[1,2,4]", "step_cost.most_tokens=20"), "x")
    steps = grid(*asked)
    tree = [(s.verify_width, s.batch, s.context) for s in steps if s.kind == "ddtree"]
    first = [(2, 1), (2, 2), (2, 4), (5, 1), (5, 2), (5, 4), (17, 1)]
    assert tree[: len(first)] == [(*each, 16) for each in first]
    assert tree[len(first) :] == [(2, 1, 256), (2, 4, 256), (17, 1, 256)]
    cached = load(make("sweep.nodes=[1]", "sweep.batch_size=[1,2,4]", "step_cost.most_cached=300"), "x")
    assert [s.batch for s in grid(*cached) if s.kind == "ddtree" and s.context == 256] == [1]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("sweep.strategy=[eagle]",), "sweep.strategy='eagle': some of autoregressive, dflash, ddtree"),
        (("sweep.temperature=[1.0]",), "sweep.temperature"),
        (("host=pro6000",), "host='pro6000': local"),
        (("step_cost.steps=0",), "step_cost.steps=0: an integer >= 1"),
        (("step_cost.context=[]",), "step_cost.context"),
        (("step_cost.clock=sundial",), "step_cost.clock='sundial': one of wall, cpu"),
        (("engine=sglang", "model=tiny"), "model='tiny': qwen3_8b"),
        (("engine=sglang", "model=qwen3_8b", "engine.flags.overlap=false"), "engine.flags.overlap=False: True"),
        (("engine=sglang", "model=qwen3_8b", "engine.flags.extra_args=[--x]"), "engine.flags.extra_args=['--x']: []"),
        (("engine=vllm", "model=qwen3_8b", "engine.flags.extra_args=[--x]"), "engine.flags.extra_args=['--x']: []"),
        (("engine=sglang", "model=qwen3_8b", "engine.url=http://x"), "engine.url='http://x': null"),
        (("engine=vllm", "model=tiny"), "model='tiny': qwen3_8b"),
        (("+engine.flags.cuda_graphs=true",), "engine.flags.cuda_graphs=True: false"),
        (("step_cost.most_tokens=1", "sweep.strategy=[ddtree]"), "step_cost.most_tokens=1"),
        (("sweep.depth=[16]",), "sweep.depth=16: at most 15"),
        (("step_cost.against=nowhere.json",), "step_cost.against='nowhere.json': an evidence file, or null"),
        (("step_cost.against=docs/evidence/sglang.json",), "an evidence file or a cost file of reference"),
        (("step_cost.against=docs/evidence/step_cost_h200.json",), "an evidence file or a cost file of reference"),
        (("step_cost.against=README.md",), "step_cost.against='README.md': an evidence file"),
        ((*HELD, "step_cost.kept=docs"), "step_cost.kept='docs': a file that can be written (it is a folder)"),
        ((*HELD, "step_cost.kept=README.md/k.json"), "step_cost.kept='README.md/k.json': a file that can be written"),
        (("output_dir=README.md/x",), "output_dir='README.md/x/step_cost/made': a folder that can be written"),
        (("step_cost.evidence=nowhere.json",), "step_cost.evidence='nowhere.json'"),
        (("step_cost.evidence=docs/evidence/vllm.json",), "model='tiny': qwen3_8b"),
        (("step_cost.evidence=docs/evidence/replay.json", "model=qwen3_8b"), "a file with round times"),
    ],
)
def test_refusals_leave_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError) as refused:
        run(make(*overrides), "made")
    assert told in str(refused.value)
    assert not list(tmp_path.glob("step_cost/made*"))


def test_an_evidence_file_becomes_a_cost_file(make: Make) -> None:
    """Rows are the file's own; unsteady ones, other arms and chains beyond the block are not among them."""
    place = ROOT / "docs" / "evidence" / "vllm.json"
    summary = run(make("model=qwen3_8b", f"step_cost.evidence={place}", "step_cost.page=false"), "made")
    cost = load_cost(summary["cost"])
    times = json.loads(place.read_text())["measured"]["round_ms"]
    expected = {
        (int(name.rpartition("_")[2]), int(batch), row["ms"])
        for batch, rows in times.items()
        for name, row in rows.items()
        if name.startswith("ddtree_") and row["steady"]
    }
    assert {(p.verify_width, p.batch, p.ms) for p in cost.points["ddtree"]} == expected
    assert {p.verify_width for p in cost.points["dflash"]} == {16}
    unsteady = sum(
        not row["steady"]
        for rows in times.values()
        for name, row in rows.items()
        if name == "dflash_16" or name.startswith("ddtree_")
    )
    assert cost.source["left_out"].count("unsteady") == unsteady > 0
    assert cost.fingerprint["engine_version"].startswith("vllm unknown")  # as the file says
    assert str(place.parent) not in json.dumps(dict(cost.source))
    refitted = run(make("model=qwen3_8b", f"step_cost.evidence={summary['cost']}", "step_cost.page=false"), "again")
    again = load_cost(refitted["cost"])
    assert (again.fits, again.fingerprint) == (cost.fits, cost.fingerprint)


def test_the_h200s_fit_tells_what_was_not_fitted(make: Make, tmp_path: Path) -> None:
    """The figures that docs/step_cost.md states, from the files that it names."""
    folder, kept = ROOT / "docs" / "evidence", tmp_path / "kept.json"
    asked = (f"step_cost.evidence={folder / 'step_cost_h200.json'}", f"step_cost.against={folder / 'sglang.json'}")
    summary = run(make("model=qwen3_8b", *asked, f"step_cost.kept={kept}", "step_cost.page=false"), "h200")
    assert summary["fit"] == run(make("model=qwen3_8b", asked[0], "step_cost.page=false"), "h200_again")["fit"]
    told = json.loads(kept.read_text())
    assert told["measured"]["errors"] == summary["against"]
    assert told["gpu"] == "NVIDIA H200"
    errors: dict[tuple[str, int], list[float]] = {}
    for row in told["measured"]["rows"]:
        errors.setdefault((row["what"], row["verify_width"]), []).append(abs(row["error"]))
    fitted = {point.verify_width for point in load_cost(summary["cost"]).points["ddtree"]}
    assert fitted == {8, 32, 128}
    assert 0.05 < max(errors["round_ms", 16]) < 0.08 > max(errors["round_ms", 64]) > 0.05  # of a later attention
    assert median([each for values in errors.values() for each in values]) < 0.05
    assert summary["against"]["tokens_per_s"]["all"]["median"] < 0.05 < max(errors["tokens_per_s", 17])  # past a tile
    other = [abs(row["error"]) for row in told["measured"]["rows"] if row["what"] == "round_ms" and not row["fitted"]]
    apart = summary["against"]["round_ms"]["other_widths"]
    assert apart["n"] == len(other) == 14  # trees of widths 16 and 64
    assert apart["median"] == pytest.approx(median(other), abs=1e-4)
    assert 0.038 < apart["median"] < 0.039
    assert summary["against"]["round_ms"]["fitted_widths"]["median"] < 0.01
    with pytest.raises(ConfigError, match="model='qwen3_4b': qwen3_8b"):  # as many layers and heads, half the weights
        run(make("model=qwen3_4b", f"step_cost.evidence={folder / 'vllm.json'}", "step_cost.page=false"), "refused")
    with pytest.raises(ConfigError, match=r"step_cost\.kept=.*null without step_cost\.against"):
        run(make("model=qwen3_8b", asked[0], f"step_cost.kept={kept}"), "refused")


def test_engines_of_sglang_are_asked_in_turns(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in decodes with the tiny pair, which stands for random weights."""
    assets = Path(package.__file__).parent / "assets"

    def tiny_pair(folder: Path) -> None:
        shutil.copytree(assets / "target", folder / "target")
        shutil.copytree(assets / "dflash", folder / "dflash")

    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    monkeypatch.setattr(sglang, "write_dummy_pair", tiny_pair)
    for name, value in {"LAYERS": 8, "KV_HEADS": 2, "HEAD": 64, "DRAFT_LAYERS": 3, "TAPS": [1, 2, 4, 6]}.items():
        monkeypatch.setattr(dummy_models, name, value)
    sizes = {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "head_dim": 64}
    for name, size in (sizes | {"tie_word_embeddings": True}).items():
        monkeypatch.setitem(dummy_models.SHAPE, name, size)
    asked = (
        "engine=sglang",
        "model=tiny",
        f"engine.python={sys.executable}",
        "sweep.strategy=[autoregressive,ddtree]",
        "sweep.nodes=[7]",
        "sweep.batch_size=[1,2]",
        "step_cost.context=[12]",
        "step_cost.prefill=[10]",
        "step_cost.steps=60",  # of the stand-in's tokens, of which a round keeps several
        "step_cost.repeats=1",
        "step_cost.page=false",
    )
    summary = run(make(*asked), "made")
    cost = load_cost(summary["cost"])
    assert summary["report"] is None
    assert {(p.verify_width, p.batch) for p in cost.points["ddtree"]} == {(8, 1), (8, 2)}
    assert {p.batch for p in cost.points["autoregressive"]} == {1, 2}
    assert [p.verify_width for p in cost.points["prefill"]] == [10]
    setup = cost.fingerprint
    assert {setup[name] for name in ("engine", "attention_backend", "verify_attention")} == {"sglang", "triton", "own"}
    assert (setup["build"], setup["extra_args"]) == (our_hash(), "none")


def test_another_plug_in_argument_or_kernel_is_another_setup(make: Make) -> None:
    """A sweep of today's server, as `experiments.adaptive.arms` asks, against a cost of what it differs from in one."""
    settings, _ = load(make("engine=sglang", "model=qwen3_8b"), "x")

    def setup(build: str | None, **changed: Any) -> dict[str, str]:
        flags = {"dtype": "bfloat16", **sglang.FLAGS, **changed}
        return fingerprint("sglang", "sglang 0.5.17 torch 2.11.0", build, "a GPU", "", settings.model, flags)

    here, points = setup(build_of("sglang")), {}
    assert CostModel(setup(our_hash(), extra_args=()), points, points, {}).check(here) is None
    for theirs, says in (
        (setup(None), f"build is none there and {our_hash()} here"),
        (setup(our_hash(), extra_args=["--x", "1"]), "extra_args is --x 1 there and none here"),
        (setup(our_hash(), verify_attention="sglang"), "verify_attention is sglang there and own here"),
    ):
        with pytest.raises(ConfigError, match=says):
            CostModel(theirs, points, points, {}).check(here)


@pytest.mark.parametrize(
    ("started", "attention"),
    [
        ({"ddtree_8": {"verify_attention": "own"}, "ddtree_8_stock": {"verify_attention": "sglang"}}, "own"),
        ({"ddtree_8": {"verify_attention": "sglang"}, "autoregressive": {}}, "sglang"),
        ({"ddtree_8": {"verify_attention": "own"}, "ddtree_4": {}}, "unknown"),
        ({"ddtree_8": {}}, "unknown"),
    ],
)
def test_evidence_says_whose_attention_or_it_is_unknown(
    make: Make, tmp_path: Path, started: dict[str, Any], attention: str
) -> None:
    rows = {"ms": 2.0, "low": 1.9, "high": 2.1, "n": 3}
    times = {"ddtree_8": {"1": rows, "2": rows}, "ddtree_4": {"1": rows}, "autoregressive": {"1": rows}}
    evidence = {
        "gpu": "a GPU",
        "versions": {"sglang": "0.5.17", "torch": "2.11.0"},
        "measured": {"round_ms": times},
        "shards": {"rounds_8": {"started": started}, "stress": {"started": {"ddtree_8": {}}}},
    }
    place = tmp_path / "evidence.json"
    place.write_text(json.dumps(evidence))
    summary = run(make("model=qwen3_8b", f"step_cost.evidence={place}", "step_cost.page=false"), "made")
    setup = load_cost(summary["cost"]).fingerprint
    assert (setup["verify_attention"], setup["build"]) == (attention, "none")


def test_the_order_leaves_a_wide_range_whenever_it_ends() -> None:
    assert halving([1, 2, 4, 8, 16, 32, 64]) == [1, 64, 8, 2, 16, 4, 32]
    assert halving([3]) == [3]
    steps = [Step("ddtree", 8, batch, context) for context in (16, 99) for batch in (1, 2, 4)]
    plan = groups([*steps, Step("prefill", 9, 1, 0)], [1, 2, 4])
    assert [(group.context, group.batch) for group in plan] == [(16, 1), (16, 4), (16, 2), (99, 1), (99, 4), (99, 2)]
