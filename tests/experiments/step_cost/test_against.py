"""A cost file against evidence: planted costs, numbers worked out by sums."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks.loop_rules import main, measure
from ddbench.cost import CostModel, Point, load_cost
from ddbench.cost.file import save_cost
from ddbench.errors import ConfigError
from experiments.sglang_evidence.synthetic import LENGTHS, OUTPUT
from experiments.step_cost.against import against, measured_of, summary
from experiments.step_cost.whole_rounds import whole_rounds

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
    """Two prompts one after another: the time is the sum of the steps of both, 19 each but for one in a thousand."""
    steps = 19
    assert LENGTHS["ddtree_16_nodes"] * (steps - 1) < OUTPUT - 1 < LENGTHS["ddtree_16_nodes"] * steps
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


def test_overlap_scheduling_adds_a_round_to_all_but_the_last(cost: CostModel, tmp_path: Path) -> None:
    """19 and 1 and 19 rounds where there were 38; nothing is said to be slower by more than that."""
    place = evidence(tmp_path / "e.json", {"tokens_per_s_synthetic": {"1": {"ddtree_16_nodes": {"median": 500.0}}}})
    (before,) = against(cost, place)
    (late,) = against(replace(cost, fingerprint={**SETUP, "overlap": "True"}), place)
    assert before.told / late.told == pytest.approx(39 / 38, rel=1e-3)


def test_a_shards_own_file_has_its_speeds_too(cost: CostModel, tmp_path: Path) -> None:
    speeds = {"2": {"dflash": {"median": 900.0}, "eagle": {"median": 900.0}}}
    merged = against(cost, evidence(tmp_path / "a.json", {"tokens_per_s_synthetic": speeds}))
    assert against(cost, evidence(tmp_path / "b.json", {"synthetic": True, "tokens_per_s": speeds})) == merged
    assert [(each.kind, each.verify_width, each.batch) for each in merged] == [("dflash", 16, 2)]
    with pytest.raises(ConfigError, match="round times or pinned speeds"):
        against(cost, evidence(tmp_path / "c.json", {"tokens_per_s": speeds}))  # of real texts


def test_another_cost_file_of_the_same_setup(cost: CostModel, tmp_path: Path) -> None:
    """Points at a width that the fit has seen and one that it has not, half as fast; only the build may differ."""
    points = {
        "ddtree": [Point(w, 8, 300.0, 2 * ms("ddtree", w, 8, 300.0), 0.1, 999.0, 3) for w in (16, 17)],
        "prefill": [Point(256, 1, 0.0, 40.0, 0.1, 999.0, 3)],
    }
    setup = {**SETUP, "build": "another"}
    save_cost(tmp_path / "other.json", setup, points, {})
    found = against(cost, str(tmp_path / "other.json"))
    assert [(each.verify_width, each.context, each.fitted) for each in found] == [(16, 300.0, True), (17, 300.0, False)]
    assert [each.error for each in found] == pytest.approx([-0.5, -0.5], abs=2e-3)
    save_cost(tmp_path / "far.json", {**setup, "device": "another"}, points, {})
    with pytest.raises(ConfigError, match=r"step_cost\.against=.*device is NVIDIA H200 there and another here"):
        against(cost, str(tmp_path / "far.json"))
    save_cost(tmp_path / "apart.json", setup, {"prefill": points["prefill"]}, {})
    with pytest.raises(ConfigError, match="of what was measured: autoregressive, dflash, ddtree"):
        against(cost, str(tmp_path / "apart.json"))
    (tmp_path / "cut.json").write_text((tmp_path / "other.json").read_text()[:-20])
    with pytest.raises(ConfigError, match=r"step_cost\.against=.*or a cost file"):
        against(cost, str(tmp_path / "cut.json"))


def test_a_file_is_read_once(cost: CostModel, tmp_path: Path) -> None:
    """As from a pipe, which a second look finds empty."""
    save_cost(tmp_path / "other.json", SETUP, {"ddtree": list(cost.points["ddtree"])}, {})
    times = {"round_ms": {"ddtree_16": {"8": {"median": 7.0}}}}
    for place in (str(tmp_path / "other.json"), evidence(tmp_path / "e.json", times)):
        reading, writing = os.pipe()
        try:
            with os.fdopen(writing, "wb") as end:
                assert end.write(Path(place).read_bytes()) < 2**16  # what a pipe holds
            assert against(cost, f"/dev/fd/{reading}") == against(cost, place)
        finally:
            os.close(reading)


@pytest.mark.parametrize(
    ("fitted", "held", "kept"),
    [
        ("step_cost_h200", "sglang", "step_cost_h200_against"),
        ("step_cost_h200", "step_cost_h200_tiles", "step_cost_h200_against_tiles"),
        ("step_cost_h200_tiles", "sglang", "step_cost_h200_tiles_against"),
        ("step_cost_h200_tiles", "sglang_rounds_64_earlier", "step_cost_h200_tiles_against_earlier"),
        ("step_cost_h200", "sglang_synthetic", "step_cost_h200_held_out"),
        ("step_cost_h200_16_32_64", "sglang", "step_cost_h200_16_32_64_against"),
        ("step_cost_h200_16_32_64", "sglang_synthetic", "step_cost_h200_16_32_64_held_out"),
    ],
)
def test_what_the_evidence_says_is_what_the_code_says(fitted: str, held: str, kept: str) -> None:
    """Made anew from the files that the evidence names; see docs/step_cost.md for the command that writes it."""
    place = Path(__file__).parents[3] / "docs" / "evidence"
    measured = json.loads((place / f"{kept}.json").read_text(encoding="utf-8"))["measured"]
    found = against(load_cost(place / f"{fitted}.json"), str(place / f"{held}.json"))
    assert summary(found) == measured["errors"]
    assert measured["against"] == f"{held}.json"
    assert [each.error for each in found] == pytest.approx([row["error"] for row in measured["rows"]], abs=1e-4)


def test_the_evidence_of_the_loops_rules_is_what_the_benchmark_says() -> None:
    place = Path(__file__).parents[3] / "docs" / "evidence"
    kept = json.loads((place / "step_cost_h200_loop.json").read_text(encoding="utf-8"))["measured"]["rows"]
    cost, rounds = (load_cost(place / f"step_cost_h200{name}.json") for name in ("", "_tiles"))
    found = measure(cost, measured_of(cost, str(place / "sglang.json"), "speeds"), rounds)
    for row, told in zip(found, kept, strict=True):
        assert {**row, "median": 0, "worst": 0} == {**told, "median": 0, "worst": 0}
        assert [row["median"], row["worst"]] == pytest.approx([told["median"], told["worst"]], abs=2e-4)


def test_wrong_files_of_loop_rules_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Path(__file__).parents[3] / "docs" / "evidence"
    cost, speeds, rounds = (place / f"{name}.json" for name in ("step_cost_h200", "sglang", "step_cost_h200_tiles"))
    for files, told in (
        (("a", "b", "c"), "cost='a': a cost file"),
        ((cost, place / "vllm.json", rounds), "EVIDENCE="),
        ((cost, rounds, rounds), "EVIDENCE="),
        ((cost, speeds, place / "README.md"), "a cost file"),
        ((cost, speeds, cost), "ROUNDS="),
        ((cost, speeds, rounds, "--evidence", str(place)), "--evidence="),
    ):
        monkeypatch.setattr("sys.argv", ["loop_rules.py", *map(str, files)])
        assert main() == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), err.startswith("error: ")) == ("", 1, True)
        assert told in err


def test_the_law_of_rounds_against_all_ways_to_emit() -> None:
    """2 or 3 tokens a round, 3 with probability 0.25; and a length that is whole has one number of rounds."""
    law, counted = whole_rounds(2.25, 8), dict[int, float]()
    for ways in product((2, 3), repeat=4):
        rounds = next(count for count in range(1, 5) if sum(ways[:count]) >= 8)
        chance = 0.75 ** ways.count(2) * 0.25 ** ways.count(3)
        counted[rounds] = counted.get(rounds, 0.0) + chance
    assert law == pytest.approx(counted)
    assert set(law) == {3, 4}
    assert whole_rounds(1.0, 127) == {127: 1.0}
    assert whole_rounds(4.0, 9) == {3: 1.0}
    with pytest.raises(ConfigError, match=r"length=0\.5: tokens a round >= 1"):
        whole_rounds(0.5, 3)
    assert sum(rounds * chance for rounds, chance in whole_rounds(6.91, 127).items()) > 127 / 6.91


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
