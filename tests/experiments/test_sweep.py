"""Whole sweeps in a real process: the contracts of the run folder, the last line, resuming, and being ended early."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ddbench.records import REQUESTS, ROUNDS, TELEMETRY, Cell

SMALL = ("sweep.width=[2]", "sweep.depth=[3]", "sweep.nodes=[4,6]", "sweep.batch_size=[1,3]")
CELLS = 2 * (1 + 1 + 2 + 2)


def final_cells(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted((folder / "cells").iterdir()):
        found[path.name] = json.loads((path / "status.json").read_text())
    return found


def wait_for(what: Callable[[], bool], timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.02)


def count_cells(folder: Path) -> int:
    return len(list((folder / "cells").glob("*/status.json")))


@pytest.fixture(scope="module")
def swept(ddbench: Any) -> Any:
    ended = ddbench.run("run_id=whole", *SMALL)
    assert ended.code == 0, ended.err
    return ended


def test_last_line_names_what_was_made(ddbench: Any, swept: Any) -> None:
    folder = ddbench.path("whole")
    assert swept.summary == {
        "run": str(folder),
        "report": str(folder / "report.md"),
        "results": str(folder / "results.parquet"),
        "cells": {"ok": CELLS, "unsupported": 0, "failed": 0, "suspect": 0},
    }
    assert len(swept.out.splitlines()) == 1
    for name in ("config.yaml", "environment.json", "dropped.json", "results.parquet", "results.csv", "report.md"):
        assert (folder / name).is_file()
    assert not (folder / ".running").exists()


def test_cells_hold_what_they_should(ddbench: Any, swept: Any) -> None:
    folder = ddbench.path("whole")
    strategies = []
    for name, status in final_cells(folder).items():
        place = folder / "cells" / name
        cell = Cell.from_dict(yaml.safe_load((place / "cell.yaml").read_text()))
        assert cell.cell_id == name
        assert status["status"] == "ok"
        assert (folder / status["log"]).is_file()
        for table, schema in (("requests", REQUESTS), ("rounds", ROUNDS), ("telemetry", TELEMETRY)):
            assert pq.read_schema(place / f"{table}.parquet").equals(schema)
        requests = pq.read_table(place / "requests.parquet").to_pylist()
        rounds = pq.read_table(place / "rounds.parquet").to_pylist()
        assert len(requests) == cell.prompts == 4
        assert {row["prompt_id"] for row in requests} == {"p0", "p1", "p2", "p3"}
        for row in requests:
            assert len(row["output_token_ids"]) == row["output_tokens"] <= cell.max_new_tokens
            mine = [r for r in rounds if r["prompt_id"] == row["prompt_id"]]
            assert row["rounds"] == len(mine) == sum(row["accept_histogram"])
            assert row["output_tokens"] == 1 + sum(r["emitted"] for r in mine) or cell.arm.strategy == "autoregressive"
            assert row["start_s"] >= 0
            assert 0 < row["ttft_s"] <= row["latency_s"]
        strategies.append(cell.arm.strategy)
    assert {name: strategies.count(name) for name in set(strategies)} == {
        "autoregressive": 2,
        "dflash": 2,
        "eagle": 4,
        "ddtree": 4,
    }


def test_every_strategy_emits_the_autoregressive_tokens(ddbench: Any, swept: Any) -> None:
    texts: dict[tuple[int, str], set[tuple[int, ...]]] = {}
    for place in (ddbench.path("whole") / "cells").iterdir():
        batch = yaml.safe_load((place / "cell.yaml").read_text())["batch_size"]
        for row in pq.read_table(place / "requests.parquet").to_pylist():
            texts.setdefault((batch, row["prompt_id"]), set()).add(tuple(row["output_token_ids"]))
    assert all(len(found) == 1 for found in texts.values())


def test_the_environment_and_the_config_are_recorded(ddbench: Any, swept: Any) -> None:
    folder = ddbench.path("whole")
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["engine_threads"] == 1
    assert {"python", "packages", "cpu", "gpus", "driver", "git_commit", "prompt_tokens"} <= environment.keys()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["run_id"] == "whole"
    assert config["sweep"]["strategy"] == ["autoregressive", "dflash", "eagle", "ddtree"]


def test_a_finished_run_is_not_measured_again(ddbench: Any, swept: Any) -> None:
    before = final_cells(ddbench.path("whole"))
    again = ddbench.run("run_id=whole", *SMALL)
    assert again.code == 0
    assert "12 of 12 cells are done already" in again.err
    assert final_cells(ddbench.path("whole")) == before
    assert again.summary == swept.summary


def test_another_plan_under_the_same_id_keeps_the_union(ddbench: Any, swept: Any) -> None:
    folder = ddbench.path("whole")
    more = ddbench.run("run_id=whole", "sweep.strategy=[autoregressive]", "sweep.batch_size=[2]")
    assert more.code == 0, more.err
    (line,) = [line for line in more.errors if f"{CELLS} cells of an earlier plan of this run are kept" in line]
    assert line.endswith("settings that differ: strategy.names, sweep.batch_size, sweep.strategy") or line.endswith(
        "settings that differ: sweep.batch_size, sweep.depth, sweep.nodes, sweep.strategy, sweep.width"
    )
    assert more.summary["cells"]["ok"] == CELLS + 1
    assert (folder / "config-1.yaml").is_file()
    assert len(list((folder / "planned").iterdir())) == 2
    assert "planned cells" not in (folder / "report.md").read_text()


def test_what_the_report_doubts_is_counted_and_strict_refuses_it(ddbench: Any, swept: Any) -> None:
    """A tree that loops, planted in the stored tokens of a finished run."""
    shutil.copytree(ddbench.path("whole"), ddbench.path("loops"))
    for place in (ddbench.path("loops") / "cells").iterdir():
        cell = Cell.from_dict(yaml.safe_load((place / "cell.yaml").read_text()))
        if (cell.arm.strategy, cell.batch_size) == ("ddtree", 3):
            rows = pq.read_table(place / "requests.parquet").to_pylist()
            for row in rows:
                row["output_token_ids"], row["output_tokens"] = [7] * 40, 40
            pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), place / "requests.parquet")
    looped = f"run={ddbench.path('loops')}"
    for ended in (
        ddbench.run("run_id=loops", "strict=true", *SMALL),
        ddbench.bare("experiment=report", looped, "strict=true", "tracking=none", "report.figures=false"),
    ):
        assert ended.code == 1, ended.err
        cells = ended.summary["cells"]
        assert cells["suspect"] == 2
        assert sum("warning: 2 cells suspect: see the report" in line for line in ended.errors) == 1
    lenient = ddbench.bare("experiment=report", looped, "tracking=none", "report.figures=false")
    assert lenient.code == 0
    assert lenient.summary["cells"] == cells


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_report_ends_with_the_last_line(
    ddbench: Any, swept: Any, number: signal.Signals, code: int
) -> None:
    process = ddbench.start("run_id=whole", "report.figures=true", *SMALL)
    assert process.stderr is not None
    said = next(line for line in process.stderr if "writing the report" in line)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, said + err
    summary = json.loads(out)
    assert (summary["interrupted"], summary["report"]) == (number.name, None)
    assert summary["cells"]["ok"] >= CELLS
    assert f"experiment=report run={ddbench.path('whole')} builds it again" in err


def test_report_alone_gives_the_same_report(ddbench: Any, swept: Any) -> None:
    folder = ddbench.path("whole")
    first = ddbench.bare("experiment=report", f"run={folder}", "tracking=none", "report.figures=false")
    one = (folder / "report.md").read_text()
    second = ddbench.bare("experiment=report", f"run={folder}", "tracking=none", "report.figures=false")
    two = (folder / "report.md").read_text()
    assert first.code == second.code == 0, first.err
    assert first.summary["report"] == str(folder / "report.md")

    def timeless(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("Report built")]

    assert timeless(one) == timeless(two)


def test_same_cell_same_id_in_another_run(ddbench: Any, swept: Any) -> None:
    other = ddbench.run("run_id=other", "sweep.strategy=[autoregressive]", "sweep.batch_size=[1]")
    assert other.code == 0, other.err
    assert final_cells(ddbench.path("other")).keys() < final_cells(ddbench.path("whole")).keys()


def test_killed_midway_loses_only_the_running_cell(ddbench: Any) -> None:
    folder = ddbench.path("killed")
    process = ddbench.start("run_id=killed", *SMALL)
    wait_for(lambda: count_cells(folder) >= 3)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = final_cells(folder)
    assert 3 <= len(before) < CELLS
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children), 30)
    rest = ddbench.run("run_id=killed", *SMALL)
    assert rest.code == 0, rest.err
    assert f"{len(before)} of {CELLS} cells are done already" in rest.err
    after = final_cells(folder)
    assert len(after) == CELLS
    assert {name: after[name] for name in before} == before
    assert not (folder / ".running").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_in_good_order(ddbench: Any, number: signal.Signals, code: int) -> None:
    folder = ddbench.path(number.name)
    process = ddbench.start(f"run_id={number.name}", *SMALL)
    wait_for(lambda: count_cells(folder) >= 3)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["interrupted"] == number.name
    assert 3 <= summary["cells"]["ok"] == count_cells(folder) < CELLS
    assert Path(summary["report"]).is_file()
    assert f"run_id={number.name} does the rest" in err
    missing = f"{CELLS - count_cells(folder)} of {CELLS} planned cells were not run: "
    assert missing in (folder / "report.md").read_text().partition("## Results")[0]
    again = ddbench.bare("experiment=report", f"run={folder}", "tracking=none", "report.figures=false")
    assert again.code == 0, again.err
    assert missing in (folder / "report.md").read_text()
    wait_for(lambda: not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children), 10)


def test_a_dead_engine_fails_its_cell_and_no_other(ddbench: Any) -> None:
    folder = ddbench.path("dead")
    process = ddbench.start("run_id=dead", "faults.retries=0", *SMALL)
    wait_for(lambda: count_cells(folder) >= 2)
    children = psutil.Process(process.pid).children(recursive=True)
    for child in children:
        if "spawn_main" in " ".join(child.cmdline()):
            child.send_signal(signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["cells"] == {"ok": CELLS - 1, "unsupported": 0, "failed": 1, "suspect": 0}
    (failed,) = (status for status in final_cells(folder).values() if status["status"] == "failed")
    assert failed["reason"] == "the engine process died (signal 9)"
    assert "signal 9" in (folder / failed["log"]).read_text()

    final = ddbench.run("run_id=dead", *SMALL)
    assert final.code == 1
    assert f"{CELLS} of {CELLS} cells are done already" in final.err
    retried = ddbench.run("run_id=dead", "retry_failed=true", *SMALL)
    assert retried.code == 0, retried.err
    assert retried.summary["cells"]["ok"] == CELLS


def test_blocks_repeats_and_temperature(ddbench: Any) -> None:
    ended = ddbench.run(
        "run_id=blocks",
        "sweep.strategy=[autoregressive,ddtree]",
        "sweep.width=[2]",
        "sweep.depth=[3]",
        "sweep.nodes=[4]",
        "sweep.batch_size=[4]",
        "sweep.temperature=[0.8]",
        "load.blocks=2",
        "load.repeats=2",
    )
    assert ended.code == 0, ended.err
    order = [line.split("] ")[1].split(":")[0] for line in ended.errors if line.startswith("[")]
    tree = "ddtree width 2 depth 3 nodes 4, batch 4, temperature 0.8"
    plain = "autoregressive, batch 4, temperature 0.8"
    assert order == [plain, tree, f"{tree}, block 1", f"{plain}, block 1"]
    seeds = set()
    for place in (ddbench.path("blocks") / "cells").iterdir():
        rows = pq.read_table(place / "requests.parquet").to_pylist()
        assert len(rows) == 8
        seeds |= {(row["repeat"], row["seed"]) for row in rows}
    assert seeds == {(0, 0), (1, 1)}


def test_what_an_engine_cannot_run_is_said_and_not_run(ddbench: Any) -> None:
    ended = ddbench.run("run_id=none", "model.eagle=null", *SMALL)
    assert ended.code == 0, ended.err
    assert ended.summary["cells"] == {"ok": CELLS - 4, "unsupported": 4, "failed": 0, "suspect": 0}
    reasons = {s["reason"] for s in final_cells(ddbench.path("none")).values() if s["status"] == "unsupported"}
    assert reasons == {"model tiny_untrained has no eagle drafter"}
    assert "nothing was measured" not in ended.err


def test_a_run_that_measured_nothing_says_so(ddbench: Any) -> None:
    ended = ddbench.run("run_id=open", "load=open", "sweep.strategy=[autoregressive]", "sweep.batch_size=[1]")
    assert ended.code == 0, ended.err
    assert ended.summary["cells"] == {"ok": 0, "unsupported": 1, "failed": 0, "suspect": 0}
    assert "warning: 1 cell unsupported: the reference engine runs a closed loop only" in ended.err
    assert sum("nothing was measured" in line for line in ended.errors) == 1


def test_an_engine_that_is_not_there_is_one_clear_line(ddbench: Any) -> None:
    ended = ddbench.run("run_id=absent", "engine=vllm", "engine.python=/nowhere/python", *SMALL)
    assert ended.code == 2
    assert len(ended.errors) == 1
    assert "engine.python='/nowhere/python'" in ended.errors[0]
    assert not ddbench.path("absent").exists()
    dry = ddbench.run("run_id=absent", "engine=vllm", "engine.python=/nowhere/python", "dry_run=true", *SMALL)
    assert dry.code == 0, dry.err
    assert dry.summary["planned"] == CELLS
    assert "a real run would stop here" in dry.err


def test_dry_run_lists_and_starts_nothing(ddbench: Any) -> None:
    ended = ddbench.run("run_id=dry", "dry_run=true", *SMALL)
    assert ended.code == 0, ended.err
    assert ended.summary["planned"] == CELLS
    assert ended.summary["cells"] == {"ok": 0, "unsupported": 0, "failed": 0, "suspect": 0}
    assert ended.out.count("GiB  ddtree width 2 depth 3 nodes 4, batch") == 2
    assert "rough estimate" in ended.err
    assert "with 1 start of the engine" in ended.err
    assert not ddbench.path("dry").exists()


def test_jobs_of_a_multirun_share_a_folder(ddbench: Any) -> None:
    shape = ("sweep.depth=[3]", "sweep.batch_size=[2]")
    ended = ddbench.run("hydra.mode=MULTIRUN", "sweep.strategy=[autoregressive],[dflash]", *shape)
    assert ended.code == 0, ended.err
    lines = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    assert len(lines) == 2
    assert lines[0]["run"] == lines[1]["run"]
    assert lines[1]["cells"]["ok"] == 2
    assert {path.name for path in ddbench.folder.iterdir()} == {"out", "prompts.jsonl", "warmup.jsonl"}
