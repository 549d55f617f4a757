"""``engine=published`` on a checkout: a small one of our own here, which has the interface and none of the code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from benchmarks.rival_speed import best_trees
from ddbench.errors import ConfigError
from experiments.engines import engine_of
from experiments.settings import Settings, load_settings
from tests.conf.test_compose import composed
from tests.experiments.conftest import ROOT, CommandLine

STAND_IN = ROOT / "tests" / "runners" / "published" / "stand_in"
SWEEP = (
    "sweep.strategy=[autoregressive,dflash,ddtree]",
    "sweep.width=[null]",
    "sweep.depth=[null]",
    "sweep.nodes=[6,12]",
    "report.build=false",
    "load.max_new_tokens=9",
)
OURS = ("engine=published", f"engine.checkout={STAND_IN}", "engine.device=cpu", "engine.dtype=float32")
COUNTS = (
    "prompt_id",
    "output_token_ids",
    "finish_reason",
    "rounds",
    "drafted",
    "accepted",
    "accepted_raw",
    "accept_histogram",
)


def settings(*overrides: str) -> Settings:
    return load_settings(composed("model=tiny_untrained", *overrides), "id")


def cells(run: Path) -> dict[tuple[str, int | None, int], tuple[Path, dict[str, Any]]]:
    """Folder and status of each cell, by strategy, nodes and batch size."""
    found = {}
    for path in (run / "cells").iterdir():
        cell = yaml.safe_load((path / "cell.yaml").read_text(encoding="utf-8"))
        arm = cell["arm"]
        status = json.loads((path / "status.json").read_text(encoding="utf-8"))
        found[(arm["strategy"], arm["nodes"], cell["batch_size"])] = (path, status)
    return found


def counted(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "requests.parquet", columns=list(COUNTS)).to_pylist()


def test_counts_are_those_of_the_reference_engine(ddbench: CommandLine) -> None:
    published = ddbench.start(*SWEEP, *OURS, "sweep.batch_size=[1,2]", "run_id=published")
    reference = ddbench.here("reference", *SWEEP, "sweep.batch_size=[1]")
    out, err = published.communicate(timeout=300)
    assert published.returncode == 0, err
    assert reference["cells"] == {"ok": 4, "unsupported": 0, "failed": 0, "suspect": 0}
    assert json.loads(out.strip().splitlines()[-1])["cells"] == {"ok": 4, "unsupported": 4, "failed": 0, "suspect": 0}
    theirs, ours = cells(ddbench.path("published")), cells(ddbench.path("reference"))
    arms = [("autoregressive", None), ("dflash", None), ("ddtree", 6), ("ddtree", 12)]
    for arm in arms:
        folder, _ = theirs[(*arm, 1)]
        assert counted(folder) == counted(ours[(*arm, 1)][0])
        assert theirs[(*arm, 2)][1]["reason"] == "the published engine decodes 1 at a time"
    folder = theirs["ddtree", 12, 1][0]
    rounds = pq.read_table(folder / "rounds.parquet").to_pylist()
    assert rounds
    assert {each["verify_s"] for each in rounds} == {None}  # it does not say
    assert {(each["drafted"], each["verify_width"]) for each in rounds} == {(12, 13)}
    assert set(json.loads((folder / "engine.json").read_text())) == {
        "stages_s",
        "own_time_per_output_token_s",
        "surplus_rounds",
    }
    told = json.loads((ddbench.path("published") / "environment.json").read_text())["published"]
    assert told["licence"] == "LICENSE: MIT License"
    arm = yaml.safe_load((folder / "cell.yaml").read_text())["arm"]
    assert arm["engine_version"].startswith(f"published ddtree (no commit, source {told['source']}) torch ")
    assert arm["flags"]["drafter_attention"] == "sdpa"


def test_a_checkout_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"engine\.checkout=None: a folder with a checkout"):
        engine_of("published").version(settings("engine=published"))


@pytest.mark.parametrize("engine", ["reference", "vllm"])
def test_other_engines_are_told_where_a_branch_goes(engine: str) -> None:
    with pytest.raises(ConfigError, match=r"engine\.checkout='there': null: .* engine\.python names that"):
        settings(f"engine={engine}", "engine.checkout=there")


def test_it_runs_here_alone() -> None:
    with pytest.raises(ConfigError, match="host='pro6000': local"):
        engine_of("published").version(settings(*OURS, "host=pro6000"))
    with pytest.raises(ConfigError, match=r"engine\.python='python3': null: the published engine"):
        settings(*OURS, "engine.python=python3")


def test_what_it_cannot_run_is_refused_by_reason() -> None:
    from experiments.shapes import Shape

    engine, asked = engine_of("published"), settings(*OURS)
    assert engine.refuse_all(asked) is None
    assert "closed loop" in str(engine.refuse_all(settings(*OURS, "load=open", "load.rate=1")))
    assert "recurrent" in str(engine.refuse_all(settings(*OURS, "model=qwen36_27b")))
    assert engine.refuse(asked, "ddtree", Shape(None, 7, 12), {}) is None
    assert "depth 7 only" in str(engine.refuse(asked, "ddtree", Shape(None, 4, 12), {}))
    assert "depth 7 only" in str(engine.refuse(asked, "dflash", Shape(None, 4), {}))
    assert "by its nodes alone" in str(engine.refuse(asked, "ddtree", Shape(2, 7, 12), {}))
    spined = settings(*OURS, "strategy.force_spine=true")
    assert "by its nodes alone" in str(engine.refuse(spined, "ddtree", Shape(None, 7, 12), {}))
    assert "no EAGLE" in str(engine.refuse(asked, "eagle", Shape(1, 3, 3), {}))
    assert "temperature 0 only" in str(engine.refuse_sampling(asked, "ddtree", 0.7))


def test_flags_follow_from_the_device() -> None:
    engine = engine_of("published")
    on_cpu = {"drafter_attention": "sdpa", "compiled_compaction": False, "target_attention": "sdpa"}
    assert engine.flags(settings(*OURS), []) == on_cpu
    on_gpu = settings("engine=published", "engine.flags.drafter_attention=flash_attention_2")
    assert engine.flags(on_gpu, []) == {
        "drafter_attention": "flash_attention_2",
        "compiled_compaction": True,
        "target_attention": "sdpa",
    }


def benchmark(evidence: Path, *more: str) -> tuple[dict[str, Any], str]:
    """The last line of the benchmark on two short requests, and all that it printed."""
    done = benchmarked(evidence, STAND_IN, *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1]), done.stdout


def benchmarked(evidence: Path, checkout: Path, *more: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, str(ROOT / "benchmarks" / "rival_speed.py"), "--checkout", str(checkout)]
    small = ["--threads", "1", "--untrained", "small", "--requests", "2", "--new-tokens", "4", "--nodes", "8"]
    told = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*program, *small, "--evidence", str(evidence), *more]
    return subprocess.run(command, env=told, capture_output=True, text=True, timeout=300, check=False)


def test_the_benchmark_compares_both(tmp_path: Path) -> None:
    data, printed = benchmark(tmp_path / "rivals.json", "--repetitions", "2")
    arms = [("autoregressive", None, 2), ("dflash", None, 2), ("ddtree", 8, 2)]
    assert [(row["strategy"], row["nodes"], row["repetitions"]) for row in data["rows"]] == arms
    assert data["left"] == []
    assert {(row["same_text_share"], row["same_rounds_share"]) for row in data["rows"]} == {(1.0, 1.0)}
    for row in data["rows"]:
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["ratio_low"] > 0
    tree = data["rows"][2]
    assert data["ratio"] == tree["reference_tokens_per_s"] / tree["published_tokens_per_s"]
    assert (data["reference_nodes"], data["published_nodes"]) == (8, 8)
    assert "best tree over best tree" in printed
    measured = json.loads((tmp_path / "rivals.json").read_text(encoding="utf-8"))["measured"]
    assert measured == {key: value for key, value in data.items() if key not in ("gpu", "versions")}


def test_a_benchmark_whose_time_is_over_tells_what_it_left(tmp_path: Path) -> None:
    data, printed = benchmark(tmp_path / "rivals.json", "--repetitions", "3", "--limit-s", "0")
    assert [(row["strategy"], row["repetitions"]) for row in data["rows"]] == [("autoregressive", 1)]
    assert (data["left"], data["ratio"]) == (["dflash", "ddtree 8"], None)
    assert "not measured within --limit-s 0: dflash, ddtree 8" in printed
    evidence = json.loads((tmp_path / "rivals.json").read_text(encoding="utf-8"))
    assert (evidence["measured"]["rows"], evidence["measured"]["left"]) == (data["rows"], data["left"])


def test_a_benchmark_that_is_broken_off_leaves_what_it_had(tmp_path: Path) -> None:
    """Its trees fail: the strategies before them are in the file, whole."""
    checkout, place = tmp_path / "checkout", tmp_path / "rivals.json"
    shutil.copytree(STAND_IN, checkout)
    source = checkout / "ddtree.py"
    source.write_text(source.read_text().replace("    assert temperature == 0\n", "    raise RuntimeError('broken')\n"))
    done = benchmarked(place, checkout, "--repetitions", "1")
    assert done.returncode == 1
    assert "RuntimeError: broken" in done.stderr
    measured = json.loads(place.read_text(encoding="utf-8"))["measured"]
    assert [row["strategy"] for row in measured["rows"]] == ["autoregressive", "dflash"]
    assert (measured["left"], measured["ratio"]) == (["ddtree 8"], None)
    assert not list(tmp_path.glob(".*"))


def test_each_side_is_taken_at_its_own_best_budget() -> None:
    """At 64 nodes the ratio is the larger, and 16 are faster for both: nobody would run 64."""
    rows = [
        {
            "strategy": "dflash",
            "nodes": None,
            "reference_tokens_per_s": 300.0,
            "published_tokens_per_s": 10.0,
            "ratio": 30.0,
        },
        {
            "strategy": "ddtree",
            "nodes": 16,
            "reference_tokens_per_s": 120.0,
            "published_tokens_per_s": 100.0,
            "ratio": 1.2,
        },
        {
            "strategy": "ddtree",
            "nodes": 64,
            "reference_tokens_per_s": 80.0,
            "published_tokens_per_s": 50.0,
            "ratio": 1.6,
        },
    ]
    best = best_trees(rows)
    assert (best["ratio"], best["reference_nodes"], best["published_nodes"]) == (1.2, 16, 16)
    assert (best["ratio_lowest"], best["ratio_highest"]) == (1.2, 1.6)
    rows[2]["reference_tokens_per_s"] = 150.0
    assert (best_trees(rows)["ratio"], best_trees(rows)["reference_nodes"]) == (1.5, 64)
    assert best_trees(rows[:1])["ratio"] is None
