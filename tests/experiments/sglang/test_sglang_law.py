"""The law shard's tests token by token: what a filter's edge decides, on planted laws and on the tiny target."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments.evidence.shards import shipped_prompts
from experiments.sglang_evidence import law, run
from experiments.sglang_evidence.law_filters import next_of
from experiments.sglang_evidence.law_reference import At, Text, logits_after, target_of
from experiments.sglang_evidence.law_steps import against, followed, often, steps
from experiments.workloads import asset_path

NUCLEUS = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}
SLACK = 0.5
STAND_IN = Path(__file__).resolve().parents[2] / "runners" / "sglang" / "stand_in"


def kept(logits: Any, sampling: Mapping[str, Any]) -> Any:
    """SGLang's filters as they are documented, by token."""
    scaled = logits.astype(np.float64) / sampling["temperature"]
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = np.argsort(-logits, kind="stable")
    before = np.cumsum(probs[order]) - probs[order]
    found = np.zeros(len(logits), dtype=bool)
    found[order] = (np.arange(len(order)) < sampling.get("top_k", len(order))) & (before <= sampling.get("top_p", 1.0))
    return found


@pytest.mark.parametrize("sampling", [NUCLEUS, {"temperature": 1.0, "top_k": 5}, {"temperature": 1.3, "top_p": 0.7}])
def test_every_rounding_keeps_what_is_sure_and_no_other_than_what_is_possible(sampling: dict[str, Any]) -> None:
    rng = np.random.default_rng(20261130)
    undecided = flipped = 0
    for _ in range(60):
        logits = rng.normal(0.0, 2.0, 40).astype(np.float32)
        told = next_of(logits, sampling, SLACK)
        assert (told.sure <= told.possible).all()
        undecided += int((told.possible & ~told.sure).sum())
        for _ in range(40):
            found = kept(logits + rng.choice([-1, 1], 40) * SLACK / 2 * rng.random(), sampling)
            assert (told.sure <= found).all()
            assert (found <= told.possible).all()
            flipped += int((found & ~told.sure).sum())
    assert undecided
    assert flipped


def test_exact_logits_leave_nothing_undecided() -> None:
    logits = np.random.default_rng(1).normal(0.0, 2.0, 300).astype(np.float32)
    told = next_of(logits, NUCLEUS, 0.0)
    assert (told.sure == kept(logits, NUCLEUS)).all()
    assert (told.possible == told.sure).all()
    free = next_of(logits, {"temperature": 1.0}, SLACK)
    assert free.sure.all()
    assert free.possible.all()
    assert np.allclose(free.probability, torch.tensor(logits).softmax(-1).numpy())


# ---- draws of a chain of tokens whose law after every text is known


def logits_of(text: Text) -> Any:
    """Three times 0, then a token whose second best is at the edge of a nucleus of 0.9, and nowhere else is one near.

    All later laws depend on what was drawn there, and on the last token.
    """
    if len(text) < 3:
        shares = [0.997, 0.001, 0.001, 0.001]
    elif len(text) == 3:
        shares = [0.9020, 0.0946, 0.0030, 0.0004]
    else:
        shares = list(np.roll([0.55, 0.25, 0.19, 0.01], 2 * text[3] + text[-1]))
    return (np.log(shares) * NUCLEUS["temperature"]).astype(np.float32)


def drawn(seed: int, edge: bool = False, sharper: float = 1.0, stray: float = 0.0, count: int = 4000) -> list[Text]:
    """``edge``: the token at the edge is kept. ``stray``: how often one is drawn that no rounding allows."""
    rng = np.random.default_rng(seed)
    laws: dict[Text, Any] = {}
    found = []
    for _ in range(count):
        text: Text = ()
        while len(text) < law.LENGTH:
            known = text if len(text) < 4 else (*text[:4], text[-1])
            if known not in laws:
                logits = logits_of(known) / sharper
                allowed = kept(logits, NUCLEUS)
                allowed[1] |= edge and len(text) == 3
                probs = np.where(allowed, np.exp(logits / NUCLEUS["temperature"]), stray)
                laws[known] = np.cumsum(probs / probs.sum())
            text = (*text, int(np.searchsorted(laws[known], rng.random())))
        found.append(text)
    return found


def judged(one: list[Text], other: list[Text], dtype: str) -> dict[str, Any]:
    texts = {at: next_of(logits_of(at[1]), NUCLEUS, law.TIES[dtype]) for at in often(one, 1)}
    found = {
        **law.both(one, other, 1),
        "steps": steps(followed(one, 1, texts), followed(other, 1, texts), texts),
        "decided_by": law.deciding(NUCLEUS, dtype),
    }
    return found | {"agrees": law.agrees(found)}


def test_a_token_at_the_edge_makes_two_laws_and_explains_itself() -> None:
    plain, other = drawn(1), drawn(2, edge=True)
    assert not judged(plain, other, "float32")["agrees"]
    found = judged(plain, other, "bfloat16")
    assert found["p"] > law.LEVEL > found["later"]["p"]
    assert found["steps"]["p"] > law.LEVEL
    assert found["steps"]["outside"] == [0, 0]
    assert found["agrees"]
    first = found["steps"]["undecided"][0]
    assert (first["prompt"], first["place"], first["token"]) == (0, 3, 1)
    assert (first["mass_before"], first["probability"]) == (0.902, 0.0946)
    assert first["of"] == [4000, 4000]
    assert first["drawn"][0] == 0 < 300 < first["drawn"][1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_wrong_law_and_a_forbidden_token_are_told(dtype: str) -> None:
    plain = drawn(3)
    assert judged(plain, drawn(4), dtype)["agrees"]
    wrong = judged(plain, drawn(5, sharper=0.8), dtype)
    assert wrong["steps"]["p"] < law.LEVEL
    assert wrong["steps"]["worst"][0]["p"] < law.LEVEL
    assert not wrong["agrees"]
    stray = judged(plain, drawn(6, stray=0.001), dtype)
    assert stray["steps"]["outside"][0] == 0 < stray["steps"]["outside"][1]
    assert not stray["agrees"]


def test_one_sample_against_the_law_itself() -> None:
    plain = drawn(7)
    texts = {at: next_of(logits_of(at[1]), NUCLEUS, 0.0) for at in often(plain, 1)}
    assert against(followed(plain, 1, texts), texts)["p"] > law.LEVEL
    assert against(followed(drawn(8, sharper=0.8), 1, texts), texts)["p"] < law.LEVEL


def test_which_tests_decide_is_a_rule_of_dtype_and_law() -> None:
    decide = {dtype: {name: law.deciding(one, dtype) for name, one in law.LAWS.items()} for dtype in law.TIES}
    every = ("early", "later", "steps")
    assert decide["float32"] == dict.fromkeys(law.LAWS, every)
    assert decide["bfloat16"] == {"plain": every, "top_k": every, "top_p": ("steps",)}
    step = {"p": 1.0, "outside": [0, 0], "first": {"texts": 3}, "later": {"texts": 0}}
    fine = {"p": 1.0, "later": {"p": 1e-9}, "steps": step}
    assert law.agrees({**fine, "decided_by": ["steps"]})
    assert law.agrees({**fine, "decided_by": every}) is False
    assert law.agrees({**fine, "steps": {**step, "first": {"texts": 0}}, "decided_by": ["steps"]}) is None


# ---- on the tiny target


def flatter(target: Path, folder: Path, factor: float) -> Path:
    """The same target with logits of ``factor`` times its own: a law of another temperature."""
    shutil.copytree(target, folder)
    weights = load_file(target / "model.safetensors")
    weights["model.norm.weight"] *= factor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_shard_from_engines_to_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few draws of the stand-in's engines: both ways of speculation have the law, and an arm that has not is told."""
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN))
    wrong = flatter(asset_path("asset://target"), tmp_path / "flatter", 0.1)
    arms = [replace(arm, extra={"model_path": str(wrong)}) if arm.name == "planted" else arm for arm in law.ARMS]
    monkeypatch.setattr(run, "shipped_prompts", lambda assets: shipped_prompts(assets)[107:])  # short, and undecided
    laws = {"top_k": {"temperature": 1.0, "top_k": 3}}
    small = {"SAMPLES": 40, "IN_FLIGHT": 4, "PROMPTS": 1, "LATER": (2,), "LENGTH": 3, "LAWS": laws}
    for name, value in {**small, "ARMS": arms}.items():
        monkeypatch.setattr(law, name, value)
    config = {"shard": "law", "python": None, "dtype": "float32", "batches": None, "prompts": None, "gpus": 1}
    config |= {"restart": 1, "limit_s": 240, "arms": ["autoregressive", "dflash", "ddtree", "planted"]}
    run.run(config | {"folder": str(tmp_path), "output": str(tmp_path / "e.json")}, "id")
    found = json.loads((tmp_path / "law_float32.json").read_text())["measured"]
    assert (found["failed"], found["slack_logits"]) == ({}, law.TIES["float32"])
    told = found["laws"]["top_k"]
    assert set(told) == {"sampling", "dflash", "ddtree", "planted", "dflash=ddtree", "against_reference"}
    assert {name: told[name]["agrees"] for name in told if "agrees" in told[name]} == {
        "dflash": True,
        "ddtree": True,
        "dflash=ddtree": True,
        "planted": False,
    }
    for name in ("dflash", "ddtree", "dflash=ddtree"):
        assert told[name]["decided_by"] == ["early", "later", "steps"]
        assert told[name]["steps"]["outside"] == [0, 0]
        assert min(told[name]["cells"], told[name]["later"]["cells"], told[name]["steps"]["first"]["cells"]) > 1
    for name in ("autoregressive", "dflash", "ddtree"):
        against_reference = told["against_reference"][name]
        assert against_reference["cells"] > 1
        assert against_reference["p"] > law.LEVEL


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, list[list[int]]]:
    assets = asset_path("asset://target").parent
    torch.set_num_threads(1)
    return target_of(Path(assets)), shipped_prompts(assets)[: law.PROMPTS]


def test_logits_of_many_texts_are_those_of_each_alone(tiny: tuple[Any, list[list[int]]]) -> None:
    target, prompts = tiny
    texts: list[At] = [(0, ()), (0, (5,)), (0, (9,)), (0, (9, 7)), (0, (5, 7)), (0, (9, 8)), (2, ()), (2, (11,))]
    found = logits_after(target, prompts, texts)
    assert set(found) == set(texts)
    for (prompt, text), row in found.items():
        with torch.inference_mode():
            alone = target(torch.tensor([prompts[prompt] + list(text)])).logits[0, -1].numpy()
        assert np.abs(alone - row).max() < 1e-3


def test_the_shipped_prompt_whose_nucleus_bfloat16_cannot_decide(tiny: tuple[Any, list[list[int]]]) -> None:
    """Six tokens into prompt 2 the best token has 0.9020, and one step of bfloat16 moves that past 0.9."""
    target, prompts = tiny
    text: Text = (261, 844, 261, 1729, 261, 369)
    at = [(2, text[:place]) for place in range(len(text) + 1)]
    row = logits_after(target, prompts, at)[2, text]
    told = next_of(row, NUCLEUS, law.TIES["bfloat16"])
    first, second = np.argsort(-row)[:2]
    assert told.before[second] == pytest.approx(0.90201, abs=2e-4)
    assert (told.sure[first], told.sure[second], told.possible[second]) == (True, False, True)
    step = 2.0**-4  # between neighbours in bfloat16 from 8 to 16, where the second best is
    sides = []
    for moved in (0.0, step):
        rounded = torch.tensor(row).bfloat16().float().numpy()
        rounded[second] += moved
        sides.append(bool(kept(rounded, NUCLEUS)[second]))
    assert sides == [False, True]
