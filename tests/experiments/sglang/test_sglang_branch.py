"""``engine=sglang engine.checkout=...``: a sweep over a made-up checkout, and what is refused at the door."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "runners" / "sglang"))

from branch import write_checkout
from engines import write_stand_in

from ddbench.errors import ConfigError
from experiments.adaptive.arms import refuse_engine
from experiments.engines import engine_of
from experiments.record.settings import load as load_record
from experiments.settings import Settings, load_settings
from experiments.shapes import Shape
from tests.conf.test_compose import composed

SMALL = ("engine=sglang", "engine.flags.context_length=512", "engine.dtype=bfloat16", "load.max_new_tokens=6")
SHAPES = ("sweep.batch_size=[1]", "sweep.depth=[null]", "sweep.nodes=[8]")


def settings(*overrides: str) -> Settings:
    return load_settings(composed("model=tiny_untrained", "engine=sglang", *overrides), "id")


def test_a_branch_is_measured_as_a_rival(ddbench: Any, tmp_path: Path) -> None:
    checkout = write_checkout(tmp_path / "checkout")
    named = (f"engine.python={write_stand_in(tmp_path)}", f"engine.checkout={checkout}", "engine.branch=sglang_29907")
    grid = (*SHAPES, "sweep.strategy=[ddtree]", "sweep.width=[2,5]", "workload.max_prompts=2")
    assert "error" not in ddbench.here("rival", *SMALL, *named, *grid)
    run = ddbench.path("rival")
    cells = {}
    for path in run.glob("cells/*/cell.yaml"):
        arm = yaml.safe_load(path.read_text())["arm"]
        cells[arm["width"]] = (path.parent, arm, json.loads((path.parent / "status.json").read_text()))
    assert cells[5][2]["status"] == "unsupported"
    assert "at most 2 candidates of a position at 8 nodes, not 5" in cells[5][2]["reason"]
    folder, arm, status = cells[2]
    assert status["status"] in ("ok", "suspect"), status["reason"]
    assert arm["engine_version"].startswith("sglang 0.5.17 torch 2.11.0 checkout (no commit, source ")
    assert arm["flags"]["overlap"] is False
    assert arm["flags"]["branch_told"][-1] == "SGLANG_DDTREE_MAX_TOPK={width}"
    counted = pq.read_table(folder / "requests.parquet").to_pylist()
    assert {each["drafted"] for each in counted} == {None}  # its server says the block's
    assert all(sum(each["accept_histogram"]) == each["rounds"] > 0 for each in counted)
    started = f"branch of {checkout.resolve()}/python/sglang/launch_server.py plug-ins none told"
    assert started in (folder / "server.log").read_text()
    assert json.loads((folder / "engine.json").read_text())["memory_unknown"] == "SGLang from a checkout is not known"
    results = pq.read_table(run / "results.parquet").to_pandas().set_index("width").loc[2]
    assert (results["verify_width"], results["acceptance_length"] >= 1) == (9, True)
    assert "ddtree w2 d7 n8 (rival: sglang_29907): trees of somebody else's code" in (run / "report.md").read_text()
    assert json.loads((run / "environment.json").read_text())["engine_checkout"]["branch"]["name"] == "sglang_29907"


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ("engine.url=http://127.0.0.1:1", "engine.checkout=there"),
            r"engine\.checkout='there': null with engine\.url",
        ),
        (("engine.branch=sglang_29907",), r"engine\.branch='sglang_29907': null without"),
        (("host=pro6000", "engine.checkout=there"), "host='pro6000': local"),
        (("engine.checkout=there",), r"engine\.checkout='there': a folder of SGLang sources, with python/sglang/"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    overrides: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=told) as caught:
        engine_of("sglang").version(settings(f"engine.python={write_stand_in(tmp_path)}", *overrides))
    assert "\n" not in str(caught.value)


def test_the_branch_is_named_or_told(tmp_path: Path) -> None:
    engine, there = engine_of("sglang"), f"engine.checkout={tmp_path}"
    plain = settings(there)
    assert "engine.branch does not say" in str(engine.refuse(plain, "ddtree", Shape(2, 7, 8), {}))
    own = settings(there, 'engine.branch={arguments:["--speculative-algorithm=X","--n","{nodes}"],overlap:false}')
    assert engine.refuse(own, "ddtree", Shape(None, 7, 8), {}) is None
    assert engine.own_flags(own, "ddtree", {"overlap": True}) == {"overlap": False}
    assert engine.own_flags(own, "dflash", {"overlap": True}) == {"overlap": True}
    extra = {"extra_args": ["--speculative-num-steps=3"]}
    assert "engine.flags.extra_args" in str(engine.refuse(own, "ddtree", Shape(None, 7, 8), extra))
    spined = settings(there, "engine.branch=sglang_29907", "strategy.force_spine=true")
    assert "forced spine" in str(engine.refuse(spined, "ddtree", Shape(2, 7, 8), {}))
    sampled = settings(there, "engine.branch=sglang_36196")
    assert "temperature 0 alone" in str(engine.refuse_sampling(sampled, "ddtree", 0.5))
    assert refuse_engine(sampled, "caddtree") == "a checkout's server asks no policy of ours (engine.checkout)"
    known = '{name:sglang_29907,arguments:["--speculative-algorithm=X","--n","{nodes}"]}'
    wrongs = {"other": "sglang_31069", "[a]": "sglang_31069", "{argument:[a]}": "unknown key", known: "no known branch"}
    for wrong, told in wrongs.items():
        with pytest.raises(ConfigError, match=told):
            engine.refuse(settings(there, f"engine.branch={wrong}"), "ddtree", Shape(2, 7, 8), {})


def test_what_needs_our_plug_in_takes_no_checkout() -> None:
    with pytest.raises(ConfigError, match=r"engine\.checkout='there': null: our plug-in is what records"):
        load_record(composed("experiment=record", "engine=sglang", "engine.checkout=there"), "id")
