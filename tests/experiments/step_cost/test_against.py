"""A cost file against evidence: planted costs, numbers worked out by sums."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddbench.cost import CostModel, Point
from ddbench.cost.file import save_cost
from ddbench.errors import ConfigError
from experiments.sglang_evidence.synthetic import LENGTHS, OUTPUT
from experiments.step_cost.against import against, summary

SETUP = {
    "engine": "sglang",
    "engine_version": "sglang 0.5.17 torch 2.11.0",
    "device": "NVIDIA H200",
    "dtype": "bfloat16",
    "target": "8191000000 parameters, 36 layers, 8 kv heads of 128, vocabulary 151936",
    "drafter": "1050000000 parameters, 5 layers, block 16",
}


def ms(kind: str, width: int, batch: int, context: float) -> float:
    return {"autoregressive": 4.0, "dflash": 6.0, "ddtree": 6.5}[kind] + 0.01 * width * batch + 1e-4 * batch * context


@pytest.fixture
def cost(tmp_path: Path) -> CostModel:
    points = {
        kind: [Point(w, b, c, ms(kind, w, b, c), 0.1, 999.0, 3) for w in widths for b in (1, 8) for c in (200.0, 500.0)]
        for kind, widths in (("autoregressive", (1,)), ("dflash", (16,)), ("ddtree", (16, 64)))
    }
    return save_cost(tmp_path / "cost.json", SETUP, points, {})


def evidence(place: Path, measured: dict[str, Any], **other: Any) -> str:
    place.write_text(json.dumps({"gpu": "NVIDIA H200", "versions": {"sglang": "0.5.17"}, "measured": measured} | other))
    return str(place)


def test_round_times_and_pinned_speeds(cost: CostModel, tmp_path: Path) -> None:
    """Two prompts one after another: the time is the sum of the steps of both."""
    steps = round((OUTPUT - 1) / LENGTHS["ddtree_16_nodes"])
    context = [256 + k * (OUTPUT - 1) / steps for k in range(steps)]
    speed = 1e3 * OUTPUT / sum(ms("ddtree", 17, 1, c) for c in context)
    rounds = {
        "autoregressive": {"8": {"median": ms("autoregressive", 1, 8, 277), "low": 1, "high": 9, "n": 5}},
        "ddtree_16": {"8": {"median": 2 * ms("ddtree", 16, 8, 277)}, "64": {"median": 7.0}},
        "dflash_64": {"8": {"median": 7.0}},  # drafts a longer block
        "ddtree_16_flashinfer": {"8": {"median": 7.0}},
        "eagle_16": {"8": {"median": 7.0}},
    }
    place = evidence(
        tmp_path / "e.json",
        {"round_ms": rounds, "tokens_per_s_synthetic": {"1": {"ddtree_16_nodes": {"median": speed}}}},
    )
    found = {(each.what, each.kind, each.batch): each for each in against(cost, place)}
    assert set(found) == {
        ("round_ms", "autoregressive", 8),
        ("round_ms", "ddtree", 8),
        ("round_ms", "ddtree", 64),
        ("tokens_per_s", "ddtree", 1),
    }
    assert found["round_ms", "autoregressive", 8].error == pytest.approx(0, abs=2e-3)
    assert found["round_ms", "ddtree", 8].error == pytest.approx(-0.5, abs=2e-3)
    assert not found["round_ms", "ddtree", 64].inside  # batch 64 was not measured
    assert found["tokens_per_s", "ddtree", 1].verify_width == 17
    assert found["tokens_per_s", "ddtree", 1].error == pytest.approx(0, abs=2e-3)
    told = summary(list(found.values()))
    assert told["round_ms"]["all"]["n"] == told["round_ms"]["fitted_widths"]["n"] == 2
    assert told["round_ms"]["all"]["worst"] == pytest.approx(0.5, abs=2e-3)
    assert told["round_ms"]["other_widths"] is None
    assert told["tokens_per_s"]["other_widths"]["n"] == told["tokens_per_s"]["all"]["n"] == 1  # 17 was not fitted
    assert told["tokens_per_s"]["fitted_widths"] is None


def test_files_of_another_machine_or_without_numbers(cost: CostModel, tmp_path: Path) -> None:
    rounds = {"round_ms": {"autoregressive": {"8": {"median": 5.0}}}}
    with pytest.raises(ConfigError, match="an evidence file of sglang on NVIDIA H200"):
        against(cost, evidence(tmp_path / "e.json", rounds, gpu="another"))
    with pytest.raises(ConfigError, match="an evidence file of sglang on NVIDIA H200"):
        against(cost, evidence(tmp_path / "e.json", rounds, versions={"vllm": "1"}))
    for version in ("0.5.1", "0.5.23", None):
        with pytest.raises(ConfigError, match=r"an evidence file of sglang 0\.5\.17"):
            against(cost, evidence(tmp_path / "e.json", rounds, versions={"sglang": version}))
    half = replace(cost, fingerprint={**SETUP, "dtype": "float32"})
    with pytest.raises(ConfigError, match="an evidence file of float32"):
        against(half, evidence(tmp_path / "e.json", rounds))
    for name, other in (
        ("target", SETUP["target"].replace("8191000000", "4022000000")),  # Qwen3-4B: the same layers and cache
        ("target", SETUP["target"].replace("36 layers", "35 layers")),
        ("drafter", "1050000000 parameters, 5 layers, block 8"),
        ("drafter", "none"),
    ):
        another = replace(cost, fingerprint={**SETUP, name: other})
        with pytest.raises(ConfigError, match=rf"step_cost\.against=.*{other}.*not of Qwen3-8B's dimensions"):
            against(another, evidence(tmp_path / "e.json", rounds))
    with pytest.raises(ConfigError, match="round times or pinned speeds"):
        against(cost, evidence(tmp_path / "e.json", {}))
    with pytest.raises(ConfigError, match="an evidence file of round times"):
        against(cost, str(tmp_path / "none.json"))
