"""The committed predictions: their arithmetic worked out again, their shape, and which machine is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ddbench.errors import ConfigError
from experiments.validate.arithmetic import Card, Interval, Round, floor_ms, passes, repeated, scaled
from experiments.validate.predict import predictions, write
from experiments.validate.predictions import COMMITTED, Machine, Prediction, choose, machine_of, read_machines

MACHINES = read_machines()
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def committed() -> Any:
    return yaml.safe_load(COMMITTED.read_text(encoding="utf-8"))


def test_the_file_follows_from_the_figures_in_it() -> None:
    data = committed()
    assert predictions(data["h200_round_ms"], data["h200_sglang"]) == data


def test_a_pass_by_hand() -> None:
    # 8.19e9 parameters less a table of 151,936 x 4096; keys and values of 304 tokens in 36 layers x 8 heads x 128
    (target,) = passes(Round(1, 1, drafts=False))
    weights = 8_190_735_360 - 151_936 * 4096
    assert target.bytes == 2 * weights + 304 * 2 * 36 * 8 * 128 * 2
    assert target.flops == 2 * weights
    assert floor_ms(Round(1, 1, False), 1e12, 1e18) == pytest.approx(target.bytes / 1e9)
    assert floor_ms(Round(1, 1, False), 1e18, 1e12) == pytest.approx(target.flops / 1e9)
    assert next(work.flops for work in passes(Round(4, 16, True))) == 64 * target.flops


def test_scaling_by_hand() -> None:
    one = Round(1, 1, False)
    here, there = Card((4e12, 4e12), (1e18, 1e18)), Card((1e12, 1e12), (1e18, 1e18))
    floor = floor_ms(one, 4e12, 1e18)
    found, said = scaled(one, Interval(floor + 1.0, floor + 2.0), here, there)
    # four times the floor: with the excess as it is, 4 f + 1 at least; with all of it scaled, 4 f + 8 at most
    assert found.low == pytest.approx(max(4 * floor, 0.85 * (4 * floor + 1.0)))
    assert found.high == pytest.approx(1.15 * (4 * floor + 8.0) + 1.0)
    assert f"over its floor of {floor:.2f}" in said
    assert repeated(Interval(10.0, 20.0)) == Interval(8.5, 24.0)


def test_no_prediction_is_below_the_roofline_or_wider_than_told() -> None:
    for name in ("pro6000_workstation", "pro6000_server", "pro6000_max_q"):
        both = (*MACHINES[name].predictions, *MACHINES[f"{name}_sglang"].predictions)
        rounds = [one for one in both if one.key.startswith("round_ms.")]
        assert len(rounds) == 2 * 12
        for one in rounds:
            assert one.low is not None
            assert one.high is not None
            assert 8.0 < one.low < one.high < 4 * one.low, one


def test_every_line_says_where_it_is_from() -> None:
    for machine in MACHINES.values():
        for one in machine.predictions:
            assert len(one.origin) > 10
            assert one.engine in (None, *machine.engines)
            assert one.key.startswith("round_") <= (one.engine is not None)


def test_what_is_predicted_under_sglang_by_hand() -> None:
    """The evidence of the H200: 0.7917 of 144 answers are 3 x sqrt(0.7917 x 0.2083 / 144) = 0.1015 above the least."""
    committed_figures = committed()["h200_sglang"]
    lines = {one.key: one for one in MACHINES["h200_sglang"].predictions}
    share = committed_figures["identity_share"]["dflash_16"]
    assert share == 0.7917
    assert lines["lossless_share.dflash_16.batch_8"].low == pytest.approx(0.690, abs=5e-4)
    assert lines["lossless_share.dflash_16.batch_8"].prompts == 144
    assert lines["acceptance_length.ddtree_64.batch_1"].low == pytest.approx(0.96 * 5.6566, abs=5e-4)
    assert lines["kv_tokens.ddtree_64"].low == 36 * 1024  # 32 x (1024 + 128) = 36 x 1024
    assert lines["weights_gib.dflash_16"].described == "17.124 to 17.296"  # 15.28 + 1.95 in the log there
    low, high = committed_figures["round_ms"]["ddtree_16"][32]
    assert lines["round_ms.ddtree_16.batch_32"].low == pytest.approx(0.85 * low, abs=5e-3)
    assert lines["round_ms.ddtree_16.batch_32"].high == pytest.approx(1.15 * high + 1.0, abs=5e-3)
    assert MACHINES["h200_sglang"].tiny.dtype == "bfloat16"
    assert {each.tiny.dtype for each in MACHINES.values() if "sglang" not in each.engines} == {"float32"}


@pytest.mark.parametrize(
    ("gpu", "engine", "name"),
    [
        (None, "reference", "reference"),
        (None, "vllm", "vllm_cpu"),
        (None, "sglang", None),
        ("NVIDIA H200", "vllm", "h200"),
        ("NVIDIA H200", "reference", None),
        ("NVIDIA H200", "sglang", "h200_sglang"),
        (WORKSTATION, "sglang", "pro6000_workstation_sglang"),
        (WORKSTATION, "vllm", "pro6000_workstation"),
        (WORKSTATION.replace("Workstation", "Server"), "sglang", "pro6000_server_sglang"),
        (WORKSTATION.replace("Workstation", "Max-Q Workstation"), "vllm", "pro6000_max_q"),
        (WORKSTATION.replace("Workstation", "Server"), "vllm", "pro6000_server"),
        ("NVIDIA A100", "vllm", None),
    ],
)
def test_which_machine(gpu: str | None, engine: str, name: str | None) -> None:
    found = choose(MACHINES, None, gpu, engine)
    assert (found and found.name) == name


def test_a_named_machine_must_be_known() -> None:
    assert choose(MACHINES, "h200", None, "reference") is MACHINES["h200"]
    assert choose(MACHINES, "h200", None, "sglang") is MACHINES["h200_sglang"]
    assert choose(MACHINES, "pro6000_max_q_sglang", None, "sglang") is MACHINES["pro6000_max_q_sglang"]
    with pytest.raises(ConfigError, match=r"validate.machine='b200'.*pro6000_workstation"):
        choose(MACHINES, "b200", None, "vllm")


def body(**changes: Any) -> dict[str, Any]:
    plan = {"batch_size": [1], "dtype": "float32", "prompts": 2, "new_tokens": 4}
    return {"what": "w", "gpu": None, "engines": ["reference"], "tiny": plan, "rounds": None, **changes}


def test_a_bad_file_is_refused(tmp_path: Path) -> None:
    line = {"key": "k", "origin": "o", "low": 2.0}
    assert isinstance(machine_of("m", body(predictions=[line])), Machine)
    for wrong, words in (
        ({**line, "high": 1.0}, "low <= high"),
        ({**line, "text": "t"}, "a text, or a lower"),
        ({"key": "k", "origin": "o"}, "a text, or a lower"),
        ({**line, "hihg": 1.0}, "unknown key"),
    ):
        with pytest.raises(ConfigError, match=words):
            machine_of("m", body(predictions=[wrong]))
    with pytest.raises(ConfigError, match="one prediction of m by that key"):
        machine_of("m", body(predictions=[line, line]))
    with pytest.raises(ConfigError, match=r"validate\.predictions=.*a file of predictions"):
        read_machines(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"validate\.evidence=.*with round times"):
        write(tmp_path / "out.yaml", tmp_path / "none.json", tmp_path / "none.json")
    vllm, sglang = (COMMITTED.parents[2] / "docs" / "evidence" / f"{engine}.json" for engine in ("vllm", "sglang"))
    with pytest.raises(ConfigError, match=r"validate\.evidence_sglang=.*with round times"):
        write(tmp_path / "out.yaml", vllm, vllm)
    write(tmp_path / "out.yaml", vllm, sglang)
    assert set(read_machines(tmp_path / "out.yaml")) == set(MACHINES)


def test_what_is_predicted_in_words() -> None:
    assert Prediction("k", "o", 1.0, 1.0).described == "1"
    assert Prediction("k", "o", 1.0, 2.5).described == "1 to 2.5"
    assert Prediction("k", "o", low=1.0).described == ">= 1"
    assert Prediction("k", "o", high=2.0).described == "<= 2"
    assert Prediction("k", "o", text="T").described == "T"
