"""What is rehearsed is no part of what is measured, and flags that say graphs are believed where graphs were used."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ddbench.decoding import Request, Sampling, Strategy, decode
from ddbench.decoding.graphs import Graphs
from ddbench.records import Arm, Cell
from runners.base import CellJob, CellOutcome, ModelFiles, Prompt, ServerSpec
from runners.measured_span import MeasuredSpan
from runners.telemetry import Telemetry
from runners.worker import Engine

PROMPTS = tuple(Prompt(f"p{i}", "d", "c", (f"def f{i}(x):",)) for i in range(2))
SPEC = ServerSpec(
    ModelFiles("none", dflash="none", random_seed=0),
    "cpu",
    "float32",
    1,
    "raw",
    None,
    512,
    True,
    PROMPTS,
    PROMPTS[:1],
    12,
    60.0,
)


class Line:
    """The worker's end of a line that nobody reads."""

    def send(self, message: tuple[Any, ...]) -> None:
        return None

    def recv(self) -> Any:
        raise EOFError


def cell(tokens: int, **flags: bool) -> Cell:
    arm = Arm("reference", "1", "ddtree", None, None, 4, False, None, "m", "t", None, "d", None, "local", flags)
    return Cell(arm, "w", "h", 1, 1, tokens, 0.0, 1.0, 0, 0, 1, 2)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(SPEC)


def measured(engine: Engine, folder: Path, tokens: int, **flags: bool) -> tuple[CellOutcome, dict[str, Any] | None]:
    """A cell of that many new tokens, and its notes."""
    folder.mkdir()
    outcome = engine.measure(CellJob(cell(tokens, **flags), folder, 2), Line())
    notes = folder / "engine.json"
    assert pq.read_table(folder / "telemetry.parquet").num_rows > 0
    return outcome, json.loads(notes.read_text()) if notes.exists() else None


def test_telemetry_runs_from_the_mark_on() -> None:
    telemetry = Telemetry(interval_s=0.01)
    with MeasuredSpan(telemetry) as span:
        time.sleep(0.05)
        assert telemetry.samples == []
        span(None)
        time.sleep(0.05)
    assert len(telemetry.samples) >= 2
    assert span.graphs() is None


def test_the_mark_comes_after_the_rehearsal(engine: Engine) -> None:
    looks: list[int] = []
    begun: list[tuple[int, int]] = []

    def clock() -> float:
        looks.append(1)
        return time.perf_counter()

    def started(made: Graphs | None) -> None:
        assert made is not None
        begun.append((len(looks), len(made)))

    asked = [Request("p", (1, 2, 3), 12, Sampling(), frozenset())]
    decode(engine.pair, Strategy("ddtree", nodes=4), asked, 1, clock=clock, graphs=True, on_start=started)
    ((before, captured),) = begun
    assert 0 < before < len(looks)
    assert captured > 0


def test_cells_with_graphs_say_how_much_was_replayed(engine: Engine, tmp_path: Path) -> None:
    outcome, notes = measured(engine, tmp_path / "long", 12, cuda_graphs=True)
    assert (outcome.status, outcome.reason) == ("ok", None)
    assert notes is not None
    told = notes["cuda_graphs"]
    assert told["captured"] > 0
    assert told["passes_replayed"] > told["passes_not_replayed"]
    outcome, notes = measured(engine, tmp_path / "without", 12)
    assert (outcome.status, notes) == ("ok", None)


def test_a_cell_without_a_replayed_pass_is_not_one_with_graphs(engine: Engine, tmp_path: Path) -> None:
    """Answers of one token are over before anything is drafted."""
    outcome, notes = measured(engine, tmp_path / "short", 1, cuda_graphs=True)
    assert (outcome.status, outcome.reason) == (
        "suspect",
        "cuda_graphs is on, and nothing that was measured was replayed from a graph",
    )
    assert notes is not None
    assert notes["cuda_graphs"]["passes_replayed"] == 0
