"""The runner against a real process that speaks SGLang's wire protocol: the stand-in, with real models and trees.

What the server tells must be what the reference engine counts for the same model, prompts and shape.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from engines import ROOT, STAND_IN, TOKENS, cell, spec, write_stand_in
from sglang_arms import GIVEN, GPU, arm

from ddbench.decoding import Request, Sampling, Strategy, decode, load_pair
from ddbench.errors import ConfigError
from ddbench.records import Cell
from experiments.fallback import checked
from runners.base import CellJob, CellOutcome, EngineFailure, ServerSpec
from runners.environments import our_hash
from runners.ports import free_port
from runners.random_models import BLOCK_SIZE, RandomPair, write_random_pair
from runners.sglang.runner import SglangRunner
from runners.tables import histogram

SMALL = replace(GIVEN, context_length=512)
DEMANDS = replace(GPU, batch_size=2, most_width=BLOCK_SIZE, context_length=512)
DEPTH = BLOCK_SIZE - 1
MEASURED = 3 * 2  # prompts and repeats
ARMS = {
    "autoregressive": arm("autoregressive", SMALL, DEMANDS),
    "dflash": arm("dflash", SMALL, DEMANDS, depth=DEPTH),
    "eagle": arm("eagle", SMALL, DEMANDS, width=2, depth=3, nodes=6),
    "ddtree": arm("ddtree", SMALL, DEMANDS, width=None, depth=4, nodes=10),
}
STRATEGIES = {
    "autoregressive": Strategy("autoregressive"),
    "dflash": Strategy("dflash", depth=DEPTH),
    "eagle": Strategy("eagle", width=2, depth=3, nodes=6),
    "ddtree": Strategy("ddtree", depth=4, nodes=10),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> RandomPair:
    return write_random_pair(tmp_path_factory.mktemp("models"), 0, 512)


@contextmanager
def started(given: ServerSpec) -> Iterator[SglangRunner]:
    runner = SglangRunner(given)
    try:
        runner.start()
        yield runner
    finally:
        runner.stop()


def measure(runner: SglangRunner, folder: Path, measured: Cell) -> tuple[CellOutcome, list[dict[str, Any]]]:
    """The outcome of a cell, and its rows of requests."""
    folder.mkdir()
    outcome = runner.run_cell(CellJob(measured, folder, 2), lambda done, total: None)
    table = folder / "requests.parquet"
    return outcome, pq.read_table(table).to_pylist() if table.is_file() else []


def check_counts(
    strategy: str,
    pair: RandomPair,
    prompts: list[tuple[int, ...]],
    rows: list[dict[str, Any]],
    folder: Path,
    told: bool = True,
    **changes: Any,
) -> None:
    """What is stored must be what our own engine counts for the same models, prompts and shape.

    ``told``: whether drafted tokens are known.
    """
    drafters = {"dflash": pair.dflash, "eagle": pair.eagle}
    loaded = load_pair(pair.target, **drafters, device="cpu", dtype="float32")
    requests = [Request("p", ids, TOKENS, Sampling(), frozenset()) for ids in prompts]
    expected = decode(loaded, replace(STRATEGIES[strategy], **changes), requests, 1) * 2
    assert len(rows) == MEASURED
    for row, one in zip(rows, expected, strict=True):
        raw = [round.accepted_raw for round in one.rounds]
        assert row["output_token_ids"] == list(one.output_token_ids)
        assert (row["rounds"], row["accepted_raw"]) == (len(raw), sum(raw))
        assert row["accepted"] == sum(round.accepted for round in one.rounds)
        assert row["drafted"] == (sum(round.drafted for round in one.rounds) if told else None)
        assert row["accept_histogram"] == histogram(raw)
        assert (row["finish_reason"], row["cached_tokens"], row["error"]) == ("length", 0, None)
    if strategy != "autoregressive":
        rounds = pq.read_table(folder / "rounds.parquet").to_pylist()
        assert [each["accepted_raw"] for each in rounds] == [r.accepted_raw for one in expected for r in one.rounds]
        assert [each["emitted"] for each in rounds] == [r.emitted for one in expected for r in one.rounds]
        assert [each["drafted"] is not None for each in rounds] == [told] * len(rounds)


@pytest.mark.parametrize("strategy", ["autoregressive", "eagle"])
def test_what_is_stored_is_what_the_reference_engine_counts(strategy: str, pair: RandomPair, tmp_path: Path) -> None:
    given = replace(spec(write_stand_in(tmp_path), pair, strategy), gaps=True)
    with started(given) as runner:
        prompts = [item.token_ids for item in runner._asked.prompts]
        outcome, rows = measure(runner, tmp_path / "cell", cell(ARMS[strategy]))
    assert (outcome.status, outcome.reason) == ("ok", None)
    assert outcome.build == our_hash()  # as in a run with trees, so that the two can be set side by side
    check_counts(strategy, pair, prompts, rows, tmp_path / "cell")
    gaps = [row["output_gaps"] for row in rows]  # of the baseline's first repeat
    if strategy == "autoregressive":
        assert all(len(each) == TOKENS and min(each) > 0 for each in gaps[:3])
    assert gaps[3:] == [None] * 3
    notes = json.loads((tmp_path / "cell" / "engine.json").read_text())
    assert notes["server"]["version"] == "0.5.17"
    assert notes["server"]["max_total_num_tokens"] == ARMS[strategy].flags["kv_tokens"]


def posts_of(folder: Path) -> list[str]:
    return [line for line in (folder / "server.log").read_text().splitlines() if line.startswith("POST")]


def test_a_server_of_trees_serves_all_cells_of_its_arm(pair: RandomPair, tmp_path: Path) -> None:
    tree = ARMS["ddtree"]
    with started(spec(write_stand_in(tmp_path), pair, "ddtree")) as runner:
        prompts = [item.token_ids for item in runner._asked.prompts]
        first, one = measure(runner, tmp_path / "one", cell(tree, batch_size=1))
        second, two = measure(runner, tmp_path / "two", cell(tree, batch_size=2))
        runner.options = replace(runner.options, rate=40.0)
        third, drawn = measure(runner, tmp_path / "open", cell(tree, temperature=1.0))
        assert runner._serving is not None
        assert runner._serving._starts == 1
    assert [each.status for each in (first, second, third)] == ["ok"] * 3, (first, second, third)
    assert {each.build for each in (first, second, third)} == {our_hash()}
    check_counts("ddtree", pair, prompts, one, tmp_path / "one")
    assert [row["output_token_ids"] for row in one] == [row["output_token_ids"] for row in two]
    starts = [row["start_s"] for row in drawn]  # an open loop's arrivals
    assert starts == sorted(starts)
    assert len(set(starts)) == MEASURED
    posts = posts_of(tmp_path / "one")  # caches are flushed between warm-up and measurement
    assert posts.count("POST /flush_cache") == 1
    flushed = posts.index("POST /flush_cache")
    assert posts[flushed + 1 :] == ["POST /generate"] * MEASURED
    assert flushed >= 2  # passes of the warm-up


def test_a_pruned_tree_has_no_count_of_drafted_tokens_and_leaked_limits_change_nothing(
    pair: RandomPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"NODES": "2", "WIDTH": "1", "DEPTH": "1", "MIN_LOG_PROB": "-0.01", "FORCE_SPINE": "1"}.items():
        monkeypatch.setenv(f"DDTREE_{name}", text)
    floor = {"min_log_prob": -9.0}
    pruned = replace(ARMS["ddtree"], **floor)
    with started(spec(write_stand_in(tmp_path), pair, "ddtree")) as runner:
        prompts = [item.token_ids for item in runner._asked.prompts]
        outcome, rows = measure(runner, tmp_path / "cell", cell(pruned))
    assert (outcome.status, outcome.reason) == ("ok", None)
    check_counts("ddtree", pair, prompts, rows, tmp_path / "cell", told=False, **floor)
    notes = json.loads((tmp_path / "cell" / "engine.json").read_text())
    assert notes["counters"]["drafted"] is None
    assert notes["server"]["ddtree"]["nodes"] == 10
    assert notes["memory_unknown"] is None
    assert notes["memory_predicted_gib"]["weights"] > 0
    assert notes["memory_free_gib"] is None  # of a CPU
    made = cell(pruned)
    assert checked(outcome, made, tmp_path / "cell") == outcome  # the sweep's own look does not need them


def test_a_server_whose_trees_are_others_is_not_measured(pair: RandomPair, tmp_path: Path) -> None:
    python = write_stand_in(tmp_path, environment={"DDTREE_NODES": "3"})
    with started(spec(python, pair, "ddtree")) as runner:
        outcome, rows = measure(runner, tmp_path / "cell", cell(ARMS["ddtree"]))
    assert (outcome.status, rows) == ("failed", [])
    told = "SGLang runs something else than it was asked for: the trees' nodes is 3, not 10"
    assert outcome.reason == told


def test_a_drafter_that_lost_its_graphs_makes_the_cell_suspect(pair: RandomPair, tmp_path: Path) -> None:
    lost = "Disable DFLASH draft cuda graph because only 0.41 GB GPU memory is available"
    says = f"ddbench: DDTREE plugin registered: N=11\n{lost}"
    eager = replace(ARMS["ddtree"], flags={**ARMS["ddtree"].flags, "cuda_graphs": False})
    with started(spec(write_stand_in(tmp_path, says=says), pair, "ddtree")) as runner:
        outcome, rows = measure(runner, tmp_path / "cell", cell(ARMS["ddtree"]))
        serving = runner._serving
        assert serving is not None
        server = serving.server_for(eager)
        assert runner.doubts(serving, server, eager) == []
    assert (outcome.status, len(rows)) == ("suspect", MEASURED)
    assert outcome.reason is not None  # a busy machine adds what it did to clocks
    assert outcome.reason.endswith(f"CUDA graphs were asked for, and the drafter has none: {lost}")


def test_a_tree_server_without_the_plug_ins_line_is_not_measured(pair: RandomPair, tmp_path: Path) -> None:
    with started(spec(write_stand_in(tmp_path, says=""), pair, "ddtree")) as runner:
        outcome, rows = measure(runner, tmp_path / "cell", cell(ARMS["ddtree"]))
    assert (outcome.status, rows) == ("failed", [])
    assert outcome.reason == "the DDTree plug-in did not register itself in the server"


def test_a_server_that_runs_something_else_is_not_measured(pair: RandomPair, tmp_path: Path) -> None:
    smaller = {**ARMS["dflash"].flags, "extra_args": ["--max-total-tokens", "64", "--page-size", "16"]}
    with started(spec(write_stand_in(tmp_path), pair, "dflash")) as runner:
        outcome, rows = measure(runner, tmp_path / "pool", cell(replace(ARMS["dflash"], flags=smaller)))
    assert (outcome.status, rows) == ("failed", [])
    asked = ARMS["dflash"].flags["kv_tokens"]
    assert outcome.reason == (
        f"SGLang runs something else than it was asked for: page_size is 16, not 1; max_total_tokens is 64, not {asked}"
    )


def test_a_version_without_a_tree_is_refused_before_anything_starts(pair: RandomPair, tmp_path: Path) -> None:
    python = write_stand_in(tmp_path, version="0.5.20")
    with pytest.raises(ConfigError, match=r"plug-in knows SGLang 0\.5\.17.*, not 0\.5\.20"):
        SglangRunner(spec(python, pair, "ddtree")).start()
    with started(spec(python, pair, "dflash")) as runner:
        assert "not been tried" in runner.look()["engine_warning"]
    with pytest.raises(ConfigError, match=r"0\.5\.12 is older than"):
        SglangRunner(spec(write_stand_in(tmp_path, version="0.5.12"), pair)).start()


@contextmanager
def running(pair: RandomPair, *flags: str, **environment: str) -> Iterator[str]:
    """A server of somebody else's, which gives its outputs whole in every event, as SGLang does by itself."""
    port = free_port()
    argv = [sys.executable, "-m", "sglang.launch_server", "--port", str(port), "--model-path", str(pair.target), *flags]
    given = {"PYTHONPATH": f"{STAND_IN}:{ROOT.parent}", **environment}
    process = subprocess.Popen(argv, env=given, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def test_the_limits_of_a_tree_server_that_runs_already_are_looked_at(pair: RandomPair, tmp_path: Path) -> None:
    attached = {**dict.fromkeys(ARMS["ddtree"].flags), "attached": True, "prefix_cache": None}
    tree = replace(ARMS["ddtree"], flags={**attached, "attention_backend": "triton"})
    flags = ("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(pair.dflash))
    shape = ("--speculative-num-draft-tokens", "11", "--speculative-eagle-topk", "10")
    block = ("--speculative-dflash-block-size", str(BLOCK_SIZE))
    for nodes, problem in (("", None), ("3", "the trees' nodes is 3, not 10")):
        limits = {"DDTREE_DEPTH": "4", "DDTREE_NODES": nodes}
        with (
            running(pair, *flags, *shape, *block, **limits) as url,
            started(spec(None, pair, "ddtree", url=url)) as runner,
        ):
            serving = runner._serving
            assert serving is not None
            if problem is not None:
                with pytest.raises(EngineFailure, match=problem):
                    serving.server_for(tree)
                continue
            server = serving.server_for(tree)
            assert runner.doubts(serving, server, tree) == []
            deeper = replace(tree, depth=5)  # as if somebody had changed the limits since
            assert runner.doubts(serving, server, deeper) == ["the trees' depth is 4, not 5"]


def test_a_server_that_runs_already_is_asked_and_left_alone(pair: RandomPair, tmp_path: Path) -> None:
    attached = {**dict.fromkeys(ARMS["dflash"].flags), "attached": True, "prefix_cache": None}
    chain = replace(ARMS["dflash"], flags={**attached, "attention_backend": "triton"})
    flags = ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(pair.dflash))
    with running(pair, *flags, "--speculative-num-draft-tokens", str(BLOCK_SIZE)) as url:
        with started(spec(None, pair, "dflash", url=url)) as runner:
            prompts = [item.token_ids for item in runner._asked.prompts]
            outcome, rows = measure(runner, tmp_path / "cell", cell(chain))
            other, none = measure(runner, tmp_path / "other", cell(replace(chain, depth=3)))
        urllib.request.urlopen(f"{url}/health", timeout=5).close()  # it still runs
    assert (outcome.status, outcome.reason) == ("ok", None)
    check_counts("dflash", pair, prompts, rows, tmp_path / "cell")
    assert (other.status, none) == ("failed", [])
    assert "speculative_num_draft_tokens is 8, not 4" in (other.reason or "")
    with pytest.raises(ConfigError, match=r"engine\.url"):
        SglangRunner(spec(None, pair, url="http://127.0.0.1:9")).start()
