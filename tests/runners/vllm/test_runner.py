"""The runner with real processes in the engine's place: what it asks of a server, and what it makes of the answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from arms import CPU, GIVEN, arm
from stand_in import TOKENS, cell, spec, write_stand_in

from ddbench.errors import ConfigError
from ddbench.records import Cell
from runners.base import CellJob, CellOutcome, ServerSpec
from runners.environments import our_hash
from runners.ports import claim_port, free_port
from runners.vllm.runner import VllmRunner

REGISTERED = "(Worker pid=1) ddbench: DDTree plug-in for vLLM 0.32.0 registered: nodes 7"
COMPLETION, RESET = "POST /v1/completions", "POST /reset_prefix_cache"
MEASURED = 3 * 2  # prompts and repeats


@contextmanager
def started(given: ServerSpec) -> Iterator[VllmRunner]:
    runner = VllmRunner(given)
    try:
        runner.start()
        yield runner
    finally:
        runner.stop()


def measure(runner: VllmRunner, folder: Path, measured: Cell) -> tuple[CellOutcome, list[str]]:
    """The outcome of a cell, and the requests to its server in their order."""
    folder.mkdir()
    outcome = runner.run_cell(CellJob(measured, folder, 2), lambda done, total: None)
    lines = (folder / "server.log").read_text().splitlines()
    return outcome, [line for line in lines if line.startswith("POST")]


def test_a_tree_server_without_the_plug_ins_line_is_not_measured(tmp_path: Path) -> None:
    made = cell(arm("ddtree", demands=CPU))
    with started(spec(write_stand_in(tmp_path, says="Application startup complete."), "ddtree")) as runner:
        for name in ("first", "second", "third"):
            outcome, asked = measure(runner, tmp_path / name, made)
            assert (outcome.status, asked) == ("failed", [])
            assert outcome.reason == "the DDTree plug-in did not register itself in the server"
            assert runner._serving is not None
            assert runner._serving._server is None
        logs = {name: (tmp_path / name / "server.log").read_text() for name in ("second", "third")}
        assert ["startup complete" in log for log in logs.values()] == [True, False]  # a start is tried twice


def test_a_tree_server_with_the_plug_ins_line_is_measured(tmp_path: Path) -> None:
    with started(spec(write_stand_in(tmp_path, says=REGISTERED), "ddtree")) as runner:
        outcome, asked = measure(runner, tmp_path / "cell", cell(arm("ddtree", demands=CPU)))
    assert len(asked) > MEASURED
    assert (outcome.status, outcome.reason) == ("failed", "no draft was counted: speculation was not active")


def test_a_server_without_trees_is_kept_with_the_plug_in_that_is_there_when_it_starts(tmp_path: Path) -> None:
    """As one with trees is, so that the two can be set side by side."""
    python = Path(write_stand_in(tmp_path))
    with started(spec(str(python))) as runner:
        first, _ = measure(runner, tmp_path / "first", cell(arm("autoregressive", demands=CPU)))
        python.write_text(python.read_text().replace(str(our_hash()), "another"))
        again = arm("autoregressive", replace(GIVEN, prefix_cache=True), CPU)
        second, _ = measure(runner, tmp_path / "second", cell(again))
    assert (first.build, second.build) == (our_hash(), "another")


def test_the_prefix_cache_is_emptied_between_warm_up_and_each_cell(tmp_path: Path) -> None:
    cached = arm("autoregressive", replace(GIVEN, prefix_cache=True), CPU)
    with started(spec(write_stand_in(tmp_path))) as runner:
        for block in range(2):
            outcome, asked = measure(runner, tmp_path / f"cell-{block}", cell(cached, block))
            assert outcome.status != "failed", outcome.reason
            assert asked.count(RESET) == 1
            assert asked[asked.index(RESET) + 1 :] == [COMPLETION] * MEASURED
            assert asked.index(RESET) >= 2  # passes of the warm-up
        outcome, asked = measure(runner, tmp_path / "without", cell(arm("autoregressive", demands=CPU)))
        assert outcome.status != "failed", outcome.reason
        assert RESET not in asked


def test_a_server_that_joins_its_events_makes_the_cell_suspect(tmp_path: Path) -> None:
    with started(spec(write_stand_in(tmp_path, event_tokens=TOKENS))) as runner:
        outcome, _ = measure(runner, tmp_path / "cell", cell(arm("autoregressive", demands=CPU)))
    assert (outcome.status, outcome.reason) == (
        "suspect",
        "joined stream events: 30 of 36 steps, 6 first tokens; clocks of 6 of 6 requests are not to be trusted",
    )
    rows = pq.read_table(tmp_path / "cell" / "requests.parquet").to_pylist()
    assert [row["output_tokens"] for row in rows] == [TOKENS] * MEASURED  # what is certain is kept


def test_a_port_that_cannot_be_is_refused_before_anything_starts() -> None:
    nowhere = "/no/such/interpreter"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"engine\.port={port}: .*it is taken"):
            VllmRunner(spec(nowhere, port=port)).start()
    for port in (0, 65536, -1):
        with pytest.raises(ConfigError, match=rf"engine\.port={port}: .*1 to 65535"):
            VllmRunner(spec(nowhere, port=port)).start()
    with pytest.raises(ConfigError, match=r"engine\.url"):  # starts none: the port does not matter
        VllmRunner(spec(nowhere, port=0, url="http://127.0.0.1:9")).start()


def test_a_port_that_is_free_stays_free_for_the_server(tmp_path: Path) -> None:
    port = free_port()
    with started(spec(write_stand_in(tmp_path), port=port)) as runner:
        assert claim_port(port) == port
        outcome, asked = measure(runner, tmp_path / "cell", cell(arm("autoregressive", demands=CPU)))
        assert outcome.status != "failed", outcome.reason
        assert COMPLETION in asked
        runner.start()  # again, while a server of ours holds it


def gaps_of(folder: Path) -> list[list[float | None] | None]:
    return [row["output_gaps"] for row in pq.read_table(folder / "requests.parquet").to_pylist()]


def test_gaps_are_gathered_after_the_measurement_of_the_autoregressive_arms_first_answers(tmp_path: Path) -> None:
    plain = arm("autoregressive", demands=CPU)
    with started(replace(spec(write_stand_in(tmp_path)), gaps=True)) as runner:
        first, asked = measure(runner, tmp_path / "first", cell(plain))
        assert first.status != "failed", first.reason
        none, without = measure(runner, tmp_path / "block", replace(cell(plain), block=1, repeats=1))
        measure(runner, tmp_path / "sampled", replace(cell(plain), temperature=1.0))
    # the first token's gap is what is left after it, and so on down to 0
    told = [float(left) for left in range(TOKENS - 1, -1, -1)]
    assert gaps_of(tmp_path / "first") == [told] * 3 + [None] * 3  # two repeats
    assert len(asked) - len(without) >= 3
    assert none.status != "failed", none.reason
    assert gaps_of(tmp_path / "block") == [None] * 3
    assert gaps_of(tmp_path / "sampled") == [None] * 6
    assert json.loads((tmp_path / "first" / "engine.json").read_text())["gaps"] == "3 of 3 outputs"


def test_a_server_that_dies_over_gaps_takes_nothing_of_the_measured_cell(tmp_path: Path) -> None:
    plain = arm("autoregressive", demands=CPU)
    with started(replace(spec(write_stand_in(tmp_path, mortal=True)), gaps=True)) as runner:
        outcome, _ = measure(runner, tmp_path / "cell", cell(plain))
        assert outcome.status != "failed", outcome.reason
        assert gaps_of(tmp_path / "cell") == [None] * MEASURED
        assert json.loads((tmp_path / "cell" / "engine.json").read_text())["gaps"].startswith("0 of 3 outputs; ")
        after, _ = measure(runner, tmp_path / "after", cell(plain, 1))
        assert after.status != "failed", after.reason
