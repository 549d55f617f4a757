"""Whole sweeps on a real vLLM, held against the reference engine; DDBENCH_VLLM_PYTHON names an interpreter with it.

The DFlash drafter here is the tiny one with one norm for the keys of all its layers: vLLM's CPU build uses the first
layer's for all (:func:`runners.vllm.versions.cpu_fault`), and so both engines compute the same drafter.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
from safetensors.torch import load_file, save_file

import ddbench
from experiments.workloads import asset_path

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PYTHON = os.environ.get("DDBENCH_VLLM_PYTHON")
GRID = ("sweep.strategy=[autoregressive,dflash,eagle]", "sweep.width=[1]", "sweep.depth=[3,15]", "sweep.nodes=[3]")
COUNTED = ("output_tokens", "rounds", "drafted", "accepted", "accepted_raw", "finish_reason", "prompt_tokens")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if PYTHON is None:
        pytest.skip("DDBENCH_VLLM_PYTHON does not name the interpreter of an environment with vLLM")
    folder = tmp_path_factory.mktemp("drafter") / "dflash"
    shutil.copytree(asset_path("asset://dflash"), folder)
    weights = load_file(folder / "model.safetensors")
    shared = weights["layers.0.self_attn.k_norm.weight"]
    same = {name: shared.clone() if name.endswith("k_norm.weight") else each for name, each in weights.items()}
    save_file(same, folder / "model.safetensors", metadata={"format": "pt"})
    return [
        "model=tiny",
        f"model.dflash.source={folder}",
        f"workload.path={asset_path('asset://prompts.jsonl')}",
        f"workload.warmup_path={asset_path('asset://warmup.jsonl')}",
        "workload.max_prompts=8",
        "load.max_new_tokens=48",
        "sweep.batch_size=[1,4]",
        "telemetry.client_lag_rounds=null",  # the engine computes on the cores that the client needs
        *GRID,
    ]


def on_vllm(*more: str) -> list[str]:
    return ["engine=vllm", "engine.device=cpu", "engine.dtype=float32", f"engine.python={PYTHON}", *more]


@pytest.fixture(scope="module")
def both(ddbench_line: Any, overrides: list[str]) -> tuple[Any, Any]:
    """The frames of one grid on both engines."""
    served = ddbench_line.run("run_id=vllm", *overrides, *on_vllm())
    assert served.code == 0, served.err
    assert_cells(served.summary, measured=6, unsupported=2)
    built_in = ddbench_line.run("run_id=reference", *overrides)
    assert built_in.code == 0, built_in.err
    return ddbench.load(served.summary["run"]), ddbench.load(built_in.summary["run"])


@pytest.fixture(scope="module")
def ddbench_line(make_command_line: Any) -> Any:
    return make_command_line()


def assert_cells(summary: dict[str, Any], measured: int, unsupported: int = 0, failed: int = 0) -> None:
    """How many cells of a run became what. On busy cores a measured one may be suspect, but for its clocks alone."""
    suspect = summary["cells"]["suspect"]
    wanted = {"ok": measured - suspect, "unsupported": unsupported, "failed": failed, "suspect": suspect}
    assert summary["cells"] == wanted
    states = [json.loads(path.read_text()) for path in Path(summary["run"]).glob("cells/*/status.json")]
    reasons = [state["reason"] for state in states if state["status"] == "suspect"]
    assert len(reasons) == suspect
    assert all(re.fullmatch(r"joined stream events: [^;]*; clocks of [^;]*", reason) for reason in reasons), reasons


def by_request(frames: Any) -> pd.DataFrame:
    cells = frames.cells[["cell_id", "strategy", "depth", "batch_size"]]
    rows = frames.requests.merge(cells, on="cell_id")
    rows["output_token_ids"] = rows["output_token_ids"].map(tuple)
    rows["accept_histogram"] = rows["accept_histogram"].map(tuple)
    rows["depth"] = rows["depth"].fillna(0)
    return rows.set_index(["strategy", "depth", "batch_size", "prompt_id"]).sort_index()


def test_tokens_and_counts_are_those_of_the_reference_engine(both: tuple[Any, Any]) -> None:
    served, built_in = (by_request(frames) for frames in both)
    assert len(served) == 6 * 8
    built_in = built_in.loc[served.index]
    assert served["output_token_ids"].equals(built_in["output_token_ids"])
    for name in (*COUNTED, "accept_histogram"):
        assert served[name].tolist() == built_in[name].tolist(), name
    assert (served["accepted_raw"] > served["accepted"]).any()  # some last rounds were cut


def test_results_agree_and_the_unsupported_is_named_first(both: tuple[Any, Any]) -> None:
    served, built_in = (frames.results.set_index(["strategy", "depth", "batch_size"]) for frames in both)
    for name in ("acceptance_length", "acceptance_length_unclipped", "accepted_per_round", "node_efficiency"):
        ours, theirs = served[name].dropna(), built_in[name].dropna()
        assert ours.to_dict() == theirs.loc[ours.index].to_dict()
    measured = served[served["status"].isin(("ok", "suspect"))]
    assert len(measured) == 6
    assert (measured["lossless_share"] == 1.0).all()
    assert (measured["ttft_ms"] > 0).all()
    assert (measured["peak_memory_gib"] > 0.5).all()
    assert served.loc[("dflash", 3, 1), "reason"].startswith("vLLM drafts and verifies one number of tokens")


def test_rounds_and_what_the_server_counted(both: tuple[Any, Any]) -> None:
    served, built_in = both
    rounds = served.rounds.merge(served.cells[["cell_id", "strategy"]], on="cell_id")
    assert set(rounds["strategy"]) == {"dflash", "eagle"}
    columns = ["drafted", "accepted", "accepted_raw", "emitted"]
    cells = built_in.cells[["cell_id", "strategy", "depth"]]
    theirs = built_in.rounds.merge(cells[cells["depth"] != 3].fillna(0)[["cell_id", "strategy"]], on="cell_id")
    dflash = [frame[frame["strategy"] == "dflash"][columns].sum().to_dict() for frame in (rounds, theirs)]
    assert dflash[0] == dflash[1]
    assert rounds["verify_s"].isna().all()


def test_every_cell_keeps_how_its_server_was_started(both: tuple[Any, Any], ddbench_line: Any) -> None:
    folder = ddbench_line.path("vllm")
    notes = [json.loads(path.read_text()) for path in folder.glob("cells/*/engine.json")]
    assert len(notes) == 6
    assert len({tuple(note["argv"]) for note in notes}) == 3  # batch sizes share a server
    assert {note["counted_by"] for note in notes} == {"no speculation", "per-request metrics of the responses"}
    logs = [path.read_text() for path in folder.glob("cells/*/server.log")]
    assert sum("Application startup complete" in log for log in logs) == 3
    assert all("requests," in log for log in logs)
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["engine_environment"]["version"].startswith("0.")
    assert "first layer" in environment["engine_warning"]


def test_the_tree_counts_as_the_reference_engine_does(ddbench_line: Any, overrides: list[str]) -> None:
    tree = ("sweep.strategy=[ddtree]", "sweep.width=[4]", "sweep.depth=[15]", "sweep.nodes=[16]")
    ended = [
        ddbench_line.run(f"run_id={name}", *overrides, *tree, *more)
        for name, more in (("tree", on_vllm()), ("tree-reference", []))
    ]
    for each in ended:
        assert each.code == 0, each.err
        assert_cells(each.summary, measured=2)
    served, built_in = (by_request(ddbench.load(each.summary["run"])) for each in ended)
    for name in (*COUNTED, "output_token_ids", "accept_histogram"):
        assert served[name].tolist() == built_in.loc[served.index, name].tolist(), name


def test_a_server_killed_in_a_cell_fails_that_cell_alone(ddbench_line: Any, overrides: list[str]) -> None:
    folder = ddbench_line.path("killed")
    process = ddbench_line.start(
        "run_id=killed",
        *overrides,
        *on_vllm("sweep.strategy=[autoregressive]", "sweep.batch_size=[1,2]", "load.max_new_tokens=400"),
        "load.ignore_eos=true",
        "faults.retries=0",
    )
    try:
        kill_engine_while_it_measures(process.pid)
        out, err = process.communicate(timeout=500)
    finally:
        process.kill()
    assert process.returncode == 1, err
    summary = json.loads(out.splitlines()[-1])
    assert_cells(summary, measured=1, failed=1)
    statuses = {path.parent: json.loads(path.read_text()) for path in folder.glob("cells/*/status.json")}
    (failed,) = (place for place, status in statuses.items() if status["status"] == "failed")
    assert "the vLLM server died" in statuses[failed]["reason"]
    assert "see server.log" in statuses[failed]["reason"]
    assert "EngineDeadError" in (failed / "server.log").read_text() or "died" in (failed / "server.log").read_text()


def kill_engine_while_it_measures(pid: int) -> None:
    """Kills the process that computes, once more tokens have come than a warm-up asks for and a request runs."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        family = psutil.Process(pid).children(recursive=True)
        numbers = [metrics(port) for port in ports(family)]
        if any(each.get("num_requests_running", 0) > 0 and each["generation_tokens_total"] > 300 for each in numbers):
            (engine,) = (each for each in family if "EngineCore" in " ".join(words(each)))
            engine.send_signal(signal.SIGKILL)
            return
        time.sleep(0.2)
    raise AssertionError("no engine came up")


def words(process: psutil.Process) -> list[str]:
    """Name and command line of a process; nothing of one that has ended meanwhile."""
    with suppress(psutil.Error):
        return [process.name(), *process.cmdline()]
    return []


def ports(family: list[psutil.Process]) -> set[str]:
    """The port of the server, as its command line says."""
    lines = [words(process) for process in family]
    return {line[line.index("--port") + 1] for line in lines if "--port" in line}


def metrics(port: str) -> dict[str, float]:
    """vLLM's own numbers, by name without prefix; nothing while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
            page = answer.read().decode()
    except OSError:
        return {}
    return {name: float(number) for name, number in re.findall(r"^vllm:(\w+)\{.*?\} (\S+)$", page, re.MULTILINE)}
