"""Published lengths at measured times: numbers by hand, the page's marks, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ddbench.cost import Point
from ddbench.cost.file import save_cost
from ddbench.errors import ConfigError
from experiments import report
from experiments.predict.run import run
from experiments.settings import ModelSettings
from experiments.step_cost.fingerprint import fingerprint
from experiments.typed import build

TABLE = "experiments/predict/published_lengths.yaml"


def ms(kind: str, width: int, batch: int) -> float:
    return {"autoregressive": 5.0, "dflash": 7.0, "ddtree": 7.0}[kind] + 0.02 * width * batch


@pytest.fixture
def asked(ddbench: Any, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """``experiment=predict`` at Qwen3-8B's dimensions, and a cost file of these: contexts of 200 and 1000 alike."""
    config = ddbench.composed("output_dir=")("predict", "model=qwen3_8b", f"predict.lengths={TABLE}")
    model = build(ModelSettings, config["model"], "model")
    setup = fingerprint("sglang", "sglang 0.5.17 torch 2", None, "NVIDIA H200", "", model, {"dtype": "bfloat16"})
    points = {
        kind: [Point(w, b, c, ms(kind, w, b), 0.1, 999.0, 3) for w in widths for b in (1, 16) for c in (200.0, 1000.0)]
        for kind, widths in (("autoregressive", (1,)), ("dflash", (16,)), ("ddtree", (16, 128)))
    }
    save_cost(tmp_path / "cost.json", setup, points, {"how": "made up", "date": "2026-01-01"})
    return config | {"cost": str(tmp_path / "cost.json")}, tmp_path


def test_numbers_and_marks(asked: tuple[dict[str, Any], Path]) -> None:
    config, folder = asked
    kept = folder / "kept.json"
    told = {**config["predict"], "card": "pro6000_workstation", "evidence": str(kept)}
    done = run({**config, "predict": told, "sweep": {**config["sweep"], "batch_size": [1, 16, 32]}}, "lengths")
    found = json.loads(Path(done["predicted"]).read_text())
    first = found["sets"][0]
    points = {(each["shape"], each["batch_size"]): each for each in first["points"]}
    assert {size for _, size in points} == {1, 16}  # 32 was not measured
    tree = points["ddtree_16", 16]
    assert tree["round_ms"] == pytest.approx(ms("ddtree", 17, 16), rel=2e-3)
    assert tree["tokens_per_s_per_user"] == pytest.approx(1e3 * 6.91 / ms("ddtree", 17, 16), rel=2e-3)
    chain = 6.12 / ms("dflash", 16, 16)
    assert tree["speedup_vs_dflash"] == pytest.approx(6.91 / ms("ddtree", 17, 16) / chain, rel=2e-3)
    assert [each["shape"] for each in first["best"]] == ["ddtree_16", "ddtree_16"]
    assert {each["shape"] for each in first["elsewhere"]} == {"autoregressive", "dflash", "ddtree_16"}
    assert all(each["low"] < each["stays"] < each["high"] for each in first["elsewhere"])
    wide = found["sets"][1]  # 128 nodes are a verify width of 129
    assert {each["shape"] for each in wide["points"]} == {"autoregressive", "ddtree_32", "ddtree_64"}
    evidence = json.loads(kept.read_text())
    assert evidence["measured"]["predicted"] is True
    assert evidence["measured"]["sets"] == found["sets"]
    assert (evidence["gpu"], evidence["measured"]["cost_measured_on"]) == ("NVIDIA H200", "2026-01-01")
    page = Path(done["report"]).read_text(encoding="utf-8")
    Path(done["report"]).unlink()
    assert report.run({"run": done["run"]}, "again")["report"] == done["report"]
    assert Path(done["report"]).read_text(encoding="utf-8") == page
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert all("PREDICTED" in line for line in headings)
    assert "ddtree pays at every batch size up to 16 (PREDICTED)" in page


def test_refusals(asked: tuple[dict[str, Any], Path]) -> None:
    config, folder = asked
    broken = folder / "broken.yaml"
    broken.write_text("model: qwen3_8b\n")
    tables = {}
    for name, other in (
        ("negative", {"sets": [{"name": "a", "source": "s", "dflash": -3, "ddtree": {}}]}),
        ("short", {"sets": [{"name": "a", "source": "s", "dflash": None, "ddtree": {8: 0.5}}]}),
        ("nodes", {"sets": [{"name": "a", "source": "s", "dflash": None, "ddtree": {0: 2.0}}]}),
        ("key", {"sets": [{"name": "a", "source": "s", "dflash": None, "dtree": {}}]}),
        ("depth", {"depth": 0, "sets": [{"name": "a", "source": "s", "dflash": 2.0, "ddtree": {}}]}),
        ("empty", {"sets": []}),
    ):
        place = folder / f"{name}.yaml"
        place.write_text(yaml.safe_dump({"model": "qwen3_8b", "temperature": 0.0, "depth": 15, **other}))
        tables[name] = {"predict": {**config["predict"], "lengths": str(place)}}
    far = {"sweep": {**config["sweep"], "batch_size": [64]}}
    for change, match in (
        (tables["negative"], r"sets \(a\)\.dflash=-3.*tokens a round >= 1"),
        (tables["short"], r"sets \(a\)\.ddtree\.8=0\.5: tokens a round >= 1"),
        (tables["nodes"], r"sets \(a\)\.ddtree=0: an integer >= 1"),
        (tables["key"], r"predict\.lengths\.sets\.?.*dtree"),
        (tables["depth"], r"predict\.lengths\.depth=0"),
        (tables["empty"], r"predict\.lengths\.sets"),
        (far, r"sweep\.batch_size=\[64\]: .*no point has a number"),
        ({"run": "outputs/record/x"}, "run='outputs/record/x': nothing with predict.lengths"),
        ({"check": "outputs/x"}, "check='outputs/x': nothing with predict.lengths"),
        ({"what_if": True}, "what_if=True: nothing with predict.lengths"),
        ({"cost": None}, "cost=None: a cost file"),
        ({"predict": {**config["predict"], "lengths": str(broken)}}, "predict.lengths=.*a table like"),
        ({"predict": {**config["predict"], "lengths": None, "evidence": "x"}}, "null without predict.lengths"),
        ({"model": {**config["model"], "name": "another"}}, "model='another': qwen3_8b, which the lengths are of"),
        ({"model": {**config["model"], "target": {**config["model"]["target"], "layers": 12}}}, "not of 8191"),
    ):
        with pytest.raises(ConfigError, match=match):
            run({**config, **change}, "refused")


def test_where_a_strategy_pays_is_told_both_ways(asked: tuple[dict[str, Any], Path]) -> None:
    """A chain of 1.3 tokens a round costs 1.4 steps at batch 1, and less and less of them at larger batches."""
    config, folder = asked
    place, lengths = folder / "rising.yaml", {"name": "a", "source": "s", "dflash": 1.3, "ddtree": {}}
    place.write_text(json.dumps({"model": "qwen3_8b", "temperature": 0.0, "depth": 15, "sets": [lengths]}))
    setup = json.loads(Path(config["cost"]).read_text())["fingerprint"]
    points = {
        "autoregressive": [Point(1, b, 512.0, 5.0 + 0.5 * b, 0.1, 999.0, 3) for b in (1, 2, 4, 8)],
        "dflash": [Point(16, b, 512.0, 8.0 + 0.5 * b, 0.1, 999.0, 3) for b in (1, 2, 4, 8)],
    }
    save_cost(folder / "rising.json", setup, points, {"how": "made up", "date": "2026-01-01"})
    told = {**config["predict"], "lengths": str(place), "extrapolate": True}
    sizes = {**config["sweep"], "batch_size": [1, 2, 4, 8, 16]}
    done = run({**config, "cost": str(folder / "rising.json"), "predict": told, "sweep": sizes}, "rising")
    (pays,) = json.loads(Path(done["predicted"]).read_text())["sets"][0]["pays"]
    assert pays["stops_paying_at"] == []
    (at,) = pays["starts_paying_at"]
    assert 8 < at < 16  # 1.3 x (5 + b / 2) = 8 + b / 2 at b = 10
    assert pays["outside"] == [16]
    page = Path(done["report"]).read_text(encoding="utf-8")
    assert f"dflash against autoregressive decoding: pays from batch {at:g} (PREDICTED, interpolated)" in page
    assert "Outside of what the cost was measured in: batch 16." in page
    stored = json.loads(Path(done["predicted"]).read_text())
    stored["sets"][0]["pays"] = [{**pays, "stops_paying_at": [20.5], "outside": []}]
    Path(done["predicted"]).write_text(json.dumps(stored))
    report.run({"run": done["run"]}, "again")
    page = Path(done["report"]).read_text(encoding="utf-8")
    assert f"pays from batch {at:g}, stops paying at batch 20.5 (PREDICTED, interpolated).\n" in page
