"""Cost files: what is stored comes back, is asked by name, and holds for one setup."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddbench.cost import CostModel, Point, late_steps, load_cost, prefill_of
from ddbench.cost.file import copy_cost, save_cost
from ddbench.errors import ConfigError

HERE = {"device": "a card", "engine": "reference", "dtype": "float32"}


def points(slope: float = 0.1) -> list[Point]:
    stages = {"draft": 1.0, "build": 0.5, "verify": 3.0, "commit": 0.5}
    return [Point(w, b, 100.0, 5 + slope * w * b, 4.0, 999.0, 3, stages) for w in (2, 9, 17) for b in (1, 2, 4)]


@pytest.fixture
def saved(tmp_path: Path) -> CostModel:
    plain = [Point(1, b, 100.0, 2 + 0.2 * b, 1.0, 9.0, 3) for b in (1, 2, 4)]
    prefill = [Point(n, 1, 0.0, 1 + 0.01 * n, 1.0, 9.0, 3) for n in (16, 64)]
    kinds = {"ddtree": points(), "autoregressive": plain, "prefill": prefill}
    return save_cost(tmp_path / "cost.json", HERE, kinds, {"how": "made up"})


def test_what_is_asked(saved: CostModel) -> None:
    assert saved.round_ms([2, 17], 4, 100).tolist() == pytest.approx([5.8, 11.8], rel=1e-3)
    assert float(saved.autoregressive_ms(2, 100)) == pytest.approx(2.4, rel=1e-3)
    assert float(saved.prefill_ms(40)) == pytest.approx(1.4, rel=1e-3)
    assert float(saved.step_ms("ddtree", 9, 1, 100)) == float(saved.round_ms(9, 1, 100))
    assert saved.round_ms([2, 9, 17], 4, 100).shape == (3,)
    with pytest.raises(ConfigError, match="cost='dflash': a kind of step that the cost file holds: autoregr"):
        saved.chain_ms(16, 4, 100)
    with pytest.raises(ConfigError, match=r"batch=64.0: 1 to 4"):
        saved.round_ms(2, 64, 100)
    assert float(saved.round_ms(2, 64, 100, extrapolate=True)) > 11


def test_the_file_has_points_fit_and_errors(tmp_path: Path, saved: CostModel) -> None:
    data = json.loads((tmp_path / "cost.json").read_text())
    assert data["schema"] == 1
    tree = data["kinds"]["ddtree"]
    assert len(tree["points"]) == len(tree["residuals"]) == len(tree["left_out"]) == 9
    assert tree["points"][0]["stages"]["verify"] == 3.0
    assert tree["error"]["worst_residual"] < 1e-3
    assert saved.points["ddtree"] == tuple(points())
    assert load_cost(tmp_path / "cost.json") == saved


def test_a_long_reading_takes_what_a_pass_of_as_many_tokens_takes(saved: CostModel, tmp_path: Path) -> None:
    """Measured up to 64 tokens, where the host decides; a pass of 68 verified tokens took 5 + 0.1 x 68."""
    read = prefill_of(saved)
    assert read is not None
    assert read(40) == pytest.approx(1.4, rel=1e-3)
    assert read(64) == pytest.approx(1.64, rel=1e-3)
    assert read(1000) == pytest.approx(5 + 0.1 * 1000, rel=2e-3)
    alone = save_cost(tmp_path / "b.json", HERE, {"prefill": list(saved.points["prefill"])}, {})
    told = prefill_of(alone)
    assert told is not None
    assert told(1000) == pytest.approx(11.0, rel=1e-2)  # nothing else was measured: the line goes on
    assert prefill_of(save_cost(tmp_path / "c.json", HERE, {"ddtree": points()}, {})) is None


def test_a_step_between_the_two_widest_passes_is_not_carried_on(tmp_path: Path) -> None:
    """1 ms a hundred tokens, and 5 ms more for the last sixteen: 6000 more tokens are not told as 1875 ms more."""
    points = [
        Point(w, b, 100.0, 5 + 0.01 * w * b + 5 * (w * b > 1024), 1.0, 99.0, 3) for w in (64, 65) for b in (1, 16)
    ]
    cost = save_cost(
        tmp_path / "d.json", HERE, {"ddtree": points, "prefill": [Point(16, 1, 0.0, 1.0, 1.0, 1.0, 3)]}, {}
    )
    read = prefill_of(cost)
    assert read is not None
    assert read(1040) == pytest.approx(5 + 10.4 + 5, rel=0.02)
    mean = (10.4 + 5 - 5.2) / 520  # of the upper half of what was measured
    assert read(7040) == pytest.approx(5 + 10.4 + 5 + 6000 * mean, rel=0.02)


def test_an_end_is_seen_late_under_overlap_scheduling_of_sglang_alone(saved: CostModel) -> None:
    assert late_steps(saved) == 0  # the reference engine
    for setup, late in (
        ({"engine": "sglang", "overlap": "True"}, 1),
        ({"engine": "sglang", "overlap": "False"}, 0),
        ({"engine": "vllm", "async_scheduling": "True"}, 0),
    ):
        assert late_steps(replace(saved, fingerprint=setup)) == late


def test_a_copy_is_the_model_itself(saved: CostModel, tmp_path: Path) -> None:
    other = replace(saved, fits={**saved.fits, "ddtree": replace(saved.fits["ddtree"], base=99.0)})
    copy_cost(tmp_path / "deep" / "copy.json", other)
    assert load_cost(tmp_path / "deep" / "copy.json") == other != saved


def test_another_setup_is_refused_in_one_line(saved: CostModel) -> None:
    saved.check(HERE)
    with pytest.raises(ConfigError) as refused:
        saved.check({**HERE, "dtype": "bfloat16", "build": "abc"})
    line = str(refused.value)
    assert "dtype is float32 there and bfloat16 here" in line
    assert "build is unknown there and abc here" in line
    assert "\n" not in line
    with pytest.raises(ConfigError, match="dtype is float32 there and unknown here"):
        saved.check({name: value for name, value in HERE.items() if name != "dtype"})


def damaged(data: dict[str, Any]) -> dict[str, Any]:
    del data["kinds"]["ddtree"]["fit"]["tokens"]["slopes"]
    return data


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: {**data, "schema": 2}, "schema 2'?: a cost file as experiment=step_cost writes it, schema 1"),
        (lambda data: [data], "schema None"),
        (lambda data: {k: v for k, v in data.items() if k != "source"}, "damaged"),
        (damaged, "damaged"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, saved: CostModel, change: Any, told: str) -> None:
    place = tmp_path / "other.json"
    place.write_text(json.dumps(change(json.loads((tmp_path / "cost.json").read_text()))))
    with pytest.raises(ConfigError, match=told):
        load_cost(place)


def test_no_file_and_no_points(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a cost file as experiment=step_cost writes it"):
        load_cost(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="at least one measured point"):
        save_cost(tmp_path / "cost.json", {}, {"ddtree": []}, {})
    with pytest.raises(ConfigError, match="one of autoregressive, dflash, ddtree, prefill"):
        save_cost(tmp_path / "cost.json", {}, {"eagle": points()}, {})
    assert not (tmp_path / "cost.json").exists()
