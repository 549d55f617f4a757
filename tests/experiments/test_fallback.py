"""Engines that fall back without a word: each way of it is planted in stored rows, and faithful runs are let pass."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddbench.records import Arm, Cell, Status
from experiments.cells import Rules, Todo, run_cells
from experiments.fallback import NOT_DECODED, drafts, fallback
from experiments.plan import Planned
from experiments.progress import Progress
from experiments.store import RunFolder
from runners.base import CellJob, CellOutcome, Prompt
from runners.tables import write_rows

AUTOREGRESSIVE = Arm(
    "reference", "1", "autoregressive", None, None, None, False, None, "m", "t", None, None, None, "local", {}
)
CHAIN = replace(AUTOREGRESSIVE, strategy="dflash", depth=4)
EAGLE = replace(AUTOREGRESSIVE, strategy="eagle", width=2, depth=3, nodes=6)
TREE = replace(AUTOREGRESSIVE, strategy="ddtree", width=2, depth=4, nodes=8)
PRUNED = replace(TREE, min_log_prob=-2.0)
SPECULATIVE = {"dflash": CHAIN, "eagle": EAGLE, "ddtree": TREE}


def request(drafted: list[int], accepted: list[int], plain: int = 0, cut: int = 0) -> dict[str, Any]:
    """A row of requests.parquet from its rounds; ``plain``: steps without a draft, ``cut``: tokens off the last one."""
    counts = Counter(accepted)
    kept = sum(accepted) - max(cut - 1, 0)
    return {
        "output_tokens": 1 + sum(accepted) + len(accepted) + plain - cut,
        "rounds": len(accepted),
        "drafted": sum(drafted),
        "accepted": kept,
        "accepted_raw": sum(accepted),
        "accept_histogram": [counts[index] for index in range(max(accepted, default=-1) + 1)],
        "error": None,
    }


def even(arm: Arm, rounds: int = 5, drafted: int | None = None, plain: int = 0) -> list[dict[str, Any]]:
    """Two requests whose every round drafts the arm's shape, or ``drafted`` tokens, and accepts one."""
    bounds = drafts(arm)
    each = bounds[1] if drafted is None and bounds else drafted or 0
    return [request([each] * rounds, [min(1, each)] * rounds, plain) for _ in range(2)]


@dataclass
class Engine:
    """An engine in whose place only its rows are: it says that all went well."""

    rows: Callable[[Cell], list[dict[str, Any]]]
    says: Status = "ok"

    def start(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        pass

    def ask(self, prompts: tuple[Prompt, ...], warmup: object = None) -> dict[str, Any]:
        raise AssertionError("one turn is asked")

    def texts(self, token_ids: object) -> list[str]:
        raise AssertionError("one turn is asked")

    def run_cell(self, job: CellJob, on_progress: Callable[[int, int], None]) -> CellOutcome:
        origin = {"cell_id": job.cell.cell_id, "block": 0, "turn": 0, "repeat": 0}
        rows = [
            {**origin, "prompt_id": f"p{index}", "start_s": 0.0, "ttft_s": 0.1, "latency_s": 1.0, **row}
            for index, row in enumerate(self.rows(job.cell))
        ]
        write_rows(job.folder, job.cell, rows, None, [])
        return CellOutcome(self.says, None if self.says == "ok" else "joined stream events")


def stored(tmp_path: Path, arm: Arm, rows: list[dict[str, Any]], says: Status = "ok") -> tuple[str, str | None]:
    """Status and reason in status.json, after the sweep's own way of running a cell."""
    cell = Cell(arm, "w", "h", len(rows), 1, 64, 0.0, 1.0, 0, 0, 1, 0)
    folder = RunFolder(tmp_path / "run")
    folder.open({}, {}, ())
    run_cells([Todo(Planned(cell, None), 1.0)], Engine(lambda _: rows, says), folder, Rules(2), Progress([1.0]))
    status = json.loads((folder.cells / cell.cell_id / "status.json").read_text())
    return status["status"], status["reason"]


@pytest.mark.parametrize("name", SPECULATIVE)
def test_speculation_that_was_switched_off_fails(name: str, tmp_path: Path) -> None:
    silent = [request([], [], plain=9) for _ in range(3)]
    reason = "no verify round in 3 requests of more than one token: speculation was not active"
    assert stored(tmp_path, SPECULATIVE[name], silent) == ("failed", reason)


@pytest.mark.parametrize("name", SPECULATIVE)
@pytest.mark.parametrize("engine", ["reference", "vllm", "sglang"])
def test_another_shape_fails(name: str, engine: str, tmp_path: Path) -> None:
    arm = replace(SPECULATIVE[name], engine=engine)
    whole = drafts(arm)
    assert whole is not None
    for drafted in (whole[1] + 1, whole[1] // 2, 0):
        status, reason = stored(tmp_path / str(drafted), arm, even(arm, drafted=drafted))
        assert status == "failed"
        assert f"{10 * drafted} tokens drafted in 10 rounds, not {whole[1]} a round" in (reason or "")
    assert stored(tmp_path / "right", arm, even(arm)) == ("ok", None)


def test_one_missing_node_shows_on_the_reference_engine_alone(tmp_path: Path) -> None:
    rows = [request([8, 8, 7], [1, 1, 1])]
    assert stored(tmp_path / "reference", TREE, rows)[0] == "failed"
    assert stored(tmp_path / "server", replace(TREE, engine="vllm"), rows) == ("ok", None)


def test_a_pruned_tree_may_draft_less_but_not_more(tmp_path: Path) -> None:
    assert stored(tmp_path / "less", PRUNED, even(PRUNED, drafted=2)) == ("ok", None)
    assert stored(tmp_path / "more", PRUNED, even(PRUNED, drafted=9))[0] == "failed"
    spine = replace(PRUNED, force_spine=True)
    assert stored(tmp_path / "spine", spine, even(spine, drafted=4)) == ("ok", None)
    assert stored(tmp_path / "short", spine, even(spine, drafted=3))[0] == "failed"


def test_a_tree_whose_drafted_tokens_nobody_counts_is_judged_by_its_rounds(tmp_path: Path) -> None:
    unknown = [{**row, "drafted": None} for row in even(PRUNED)]
    assert stored(tmp_path / "right", PRUNED, unknown) == ("ok", None)
    deep = [{**row, "drafted": None} for row in [request([8], [5])]]
    assert stored(tmp_path / "deep", PRUNED, deep)[0] == "failed"
    idle = [{**request([], [], plain=4), "drafted": None}]
    assert stored(tmp_path / "idle", PRUNED, idle)[0] == "failed"


def test_an_autoregressive_arm_that_speculates_fails(tmp_path: Path) -> None:
    assert stored(tmp_path / "none", AUTOREGRESSIVE, [request([], [], plain=9)]) == ("ok", None)
    status, reason = stored(tmp_path / "some", AUTOREGRESSIVE, even(CHAIN))
    assert (status, "the engine speculated" in (reason or "")) == ("failed", True)


def test_a_round_deeper_than_the_drafter_fails(tmp_path: Path) -> None:
    rows = [request([4, 4], [1, 5])]
    assert stored(tmp_path, CHAIN, rows) == ("failed", "a round accepted 5 tokens, deeper than 4")


def test_steps_without_a_draft_make_an_arm_suspect_and_then_another(tmp_path: Path) -> None:
    few, most = even(CHAIN, rounds=9, plain=1), even(CHAIN, rounds=2, plain=9)
    told = "at least 2 of 20 decode steps went without a draft"
    assert stored(tmp_path / "few", CHAIN, few) == ("suspect", told)
    assert stored(tmp_path / "most", CHAIN, most)[0] == "failed"


def test_what_the_runner_doubts_is_not_called_a_fallback(tmp_path: Path) -> None:
    """Events that joined several rounds look like rounds too deep, or none: the runner has said so already."""
    arm = replace(CHAIN, engine="vllm")
    for name, rows in (("deep", [request([4], [9])]), ("none", [request([], [], plain=9)])):
        assert stored(tmp_path / name, arm, rows, "suspect") == ("suspect", "joined stream events")
    wrong = stored(tmp_path / "shape", arm, even(arm, drafted=2), "suspect")
    assert wrong[0] == "failed"
    assert (
        wrong[1] == "20 tokens drafted in 10 rounds, not 4 a round: the engine ran another shape; joined stream events"
    )


def test_counts_that_an_engine_does_not_give_are_not_taken_for_granted(tmp_path: Path) -> None:
    unknown = [{**row, "rounds": None, "drafted": None} for row in even(CHAIN)]
    assert stored(tmp_path / "chain", CHAIN, unknown)[0] == "suspect"
    assert stored(tmp_path / "plain", AUTOREGRESSIVE, unknown) == ("ok", None)


@pytest.mark.parametrize("arm", [TREE, CHAIN, AUTOREGRESSIVE])
def test_answers_of_one_token_measure_nothing(arm: Arm, tmp_path: Path) -> None:
    told = "every answer ended with its first token: nothing was decoded"
    assert stored(tmp_path / "all", arm, [request([], []), request([], [])]) == ("suspect", told)
    longer = [request([], [], plain=4)] if arm is AUTOREGRESSIVE else even(arm)
    assert stored(tmp_path / "one", arm, [request([], []), *longer]) == ("ok", None)


@st.composite
def faithful(draw: st.DrawFn) -> tuple[Arm, list[dict[str, Any]]]:
    """A run of any strategy as it should be: full drafts (or pruned ones), any acceptance, ends cut anywhere."""
    server = draw(st.booleans())
    arm = draw(st.sampled_from([*SPECULATIVE.values(), PRUNED, replace(PRUNED, force_spine=True)]))
    arm = replace(arm, engine="vllm" if server else "reference")
    least, most = drafts(arm) or (0, 0)
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(0, 8))
        drafted = [draw(st.integers(least, most)) for _ in range(count)]
        if server and count:
            drafted[-1] = draw(st.integers(0, drafted[-1]))
        accepted = [draw(st.integers(0, min(arm.depth or 0, each))) for each in drafted]
        cut = draw(st.integers(0, accepted[-1])) if count else 0
        rows.append(request(drafted, accepted, cut=cut))
    return arm, rows


@given(faithful())
def test_no_faithful_run_is_blamed(made: tuple[Arm, list[dict[str, Any]]]) -> None:
    arm, rows = made
    decoded = any(row["output_tokens"] > 1 for row in rows)
    assert fallback(arm, rows) == (("ok", None) if decoded else ("suspect", NOT_DECODED))


def test_plain_steps_are_counted_against_all_steps() -> None:
    """Of 10 decode steps 4 went without a draft: more than half of the 6 rounds, fewer than half of the steps."""
    row = request([4] * 6, [1] * 6, plain=4)
    assert fallback(CHAIN, [row, row])[0] == "suspect"
