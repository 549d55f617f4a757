"""Measured round times as a judge of what a fit decides: tables by hand, and a comparison through the verb."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddbench.adaptive import Candidates
from ddbench.cost import CostModel, Point, load_cost
from ddbench.cost.file import save_cost
from ddbench.errors import ConfigError
from ddbench.replay import Trace
from ddbench.replay.trace import Key
from experiments.adaptive.compare import ALONE, BLIND, UNJUDGED, UNPRICED, Row, compare
from experiments.adaptive.judge import Judge, Table
from experiments.adaptive.run import run
from experiments.record import run as recording

Make = Callable[..., dict[str, Any]]
SETUP = {
    "engine": "sglang",
    "engine_version": "sglang 0.5.17 torch 2.11.0",
    "device": "NVIDIA H200",
    "dtype": "bfloat16",
    "target": "8191000000 parameters, 36 layers, 8 kv heads of 128, vocabulary 151936",
    "drafter": "1050000000 parameters, 5 layers, block 16",
}
UNSTEADY = {"median": 9.0, "low": 1.0, "high": 99.0, "n": 5, "steady": False}
CHEAP = 8  # the verify width that the fit never saw, and that takes half of what it says


def ms(kind: str, width: int, batch: int) -> float:
    base = {"autoregressive": 4.0, "dflash": 6.0, "ddtree": 6.5}[kind]
    return (base + 0.05 * width * batch) * (0.5 if (kind, width) == ("ddtree", CHEAP) else 1.0)


def cost_file(place: Path) -> Path:
    kinds = {"autoregressive": (1,), "dflash": (16,), "ddtree": (4, 13)}
    points = {
        kind: [Point(w, b, 277.0, ms(kind, w, b), 0.1, 99.0, 3) for w in widths for b in (1, 2, 4)]
        for kind, widths in kinds.items()
    }
    save_cost(place, SETUP, points, {"how": "made up"})
    return place


def evidence(place: Path, **other: Any) -> Path:
    arms = {"ddtree_8": ("ddtree", CHEAP), "dflash_16": ("dflash", 16), "eagle_16": ("ddtree", 13)}
    rounds = {
        arm: {str(b): {"median": ms(kind, width, b), "low": 0.1, "high": 99.0, "n": 5} for b in (1, 4)}
        for arm, (kind, width) in arms.items()
    }
    told = {"gpu": "NVIDIA H200", "versions": {"sglang": "0.5.17"}, "measured": {"round_ms": rounds}, **other}
    place.write_text(json.dumps(told))
    return place


def test_a_table_by_hand(tmp_path: Path) -> None:
    """Points where there are any, a line between neighbours, nothing beyond them or where a corner is missing."""
    cost = load_cost(cost_file(tmp_path / "cost.json"))
    points = [Point(w, b, 277.0, value, 0.1, 99.0, 3) for w, b, value in ((4, 1, 7.0), (4, 4, 10.0), (8, 1, 9.0))]
    table = Table.of([*points, Point(4, 1, 277.0, 8.0, 0.1, 99.0, 3)], cost.fit("ddtree"))
    assert table([4, 4, 8], [1, 4, 1], 277.0).tolist() == pytest.approx([7.5, 10.0, 9.0])
    assert float(table(4, 2, 277.0)) == pytest.approx(7.5 + 2.5 / 3)
    assert float(table(6, 1, 277.0)) == pytest.approx((7.5 + 9.0) / 2)
    assert np.isinf(table([8, 6, 3, 9, 4], [4, 4, 1, 1, 5], 277.0)).all()


def test_it_prices_what_the_fit_decides(ddbench: Any, tmp_path: Path) -> None:
    """The width that is cheap was not in the fit: the policy does not find it, hindsight does; told, it takes it."""
    make: Make = ddbench.composed("model=", "tracking=", "engine.", "workload", "output_dir=", "load.")
    recorded = recording.run(make("record", "record.nodes=12"), "judged")["run"]
    cost, judge = cost_file(tmp_path / "cost.json"), evidence(tmp_path / "e.json")
    shapes = ("adaptive.trees=[3,7,12]", "adaptive.chains=[]", "adaptive.batch_size=[1]", "adaptive.fill=1")
    asked = (f"run={recorded}", f"cost={cost}", *shapes, "adaptive.policies=[cost_optimal]")
    with pytest.raises(ConfigError, match="not of 8191000000"):
        run(make("adaptive", *asked), "refused")
    kept = tmp_path / "evidence" / "adaptive.json"
    judged = (*asked, "what_if=true", f"adaptive.judge={judge}", f"adaptive.evidence={kept}")
    found = run(make("adaptive", *judged), "judged")
    told = json.loads(kept.read_text())
    assert told["gpu"] == "NVIDIA H200"
    assert told["measured"]["predicted"] is True
    assert told["measured"]["other_model"].endswith(f"times of {SETUP['target']}")
    assert {each["best"] for each in told["measured"]["whole_sets"]} == {"tree 7"}
    page = Path(found["report"]).read_text(encoding="utf-8")
    assert "WHAT IF: nobody's speed" in page
    assert "priced by round times that were measured" in page
    known = run(make("adaptive", *judged, "adaptive.knows=true"), "known")
    blind, knowing = (each["policies"]["cost_optimal"]["median"] for each in (found, known))
    assert knowing > blind
    assert knowing >= 0.98
    few = {"ddtree_8": {"1": {"median": 5.0, "low": 0.1, "high": 99.0, "n": 5}, "2": UNSTEADY}}
    place = evidence(tmp_path / "few.json", measured={"round_ms": few})
    last = ("adaptive.trees=[7]", "adaptive.batch_size=[2]", f"adaptive.judge={place}")
    lost = run(make("adaptive", *judged, *last, f"adaptive.evidence={kept}"), "lost")
    left = json.loads(kept.read_text())["measured"]
    assert {(each["arm"], each["batch_size"], each["reason"]) for each in left["left_out"]} == {
        ("cost_optimal", 2, UNJUDGED)
    }
    assert left["judge_left_out"] == ["ddtree_8 at batch 2 (unsteady)"]
    assert lost["policies"]["cost_optimal"]["worst"] is None
    page = Path(lost["report"]).read_text(encoding="utf-8")
    assert "`cost_optimal` is left out at every point" in page
    assert "`cost_optimal` is left out at batch 2, T = 0, on" in page
    assert "unsteady, and price nothing: ddtree_8 at batch 2" in page
    for wrong, match in (
        (("adaptive.knows=true",), "false without adaptive.judge"),
        (("adaptive.trees=[99]",), "the candidates that were recorded"),
        (("adaptive.nodes=4",), "null where adaptive.trees"),
        ((f"adaptive.judge={evidence(tmp_path / 'other.json', gpu='another')}",), "adaptive.judge=.*NVIDIA H200"),
    ):
        with pytest.raises(ConfigError, match=match):
            run(make("adaptive", *asked, "what_if=true", *wrong), "wrong")


def test_a_judge_has_the_points_of_both_files(tmp_path: Path) -> None:
    judge = Judge.of(load_cost(cost_file(tmp_path / "cost.json")), str(evidence(tmp_path / "e.json")), 16)
    widths = np.array([4, 8, 13])
    assert judge.round_ms(widths, 4, 277.0).tolist() == pytest.approx([ms("ddtree", w, 4) for w in widths.tolist()])
    assert float(judge.chain_ms(16, 2, 277.0)) == pytest.approx(ms("dflash", 16, 2))
    assert float(judge.autoregressive_ms(4, 277.0)) == pytest.approx(ms("autoregressive", 1, 4))


def test_a_judge_of_another_model_or_without_round_times_is_refused(tmp_path: Path) -> None:
    cost = load_cost(cost_file(tmp_path / "cost.json"))
    other = replace(cost, fingerprint={**SETUP, "target": "4022000000 parameters"})
    with pytest.raises(ConfigError, match=r"adaptive\.judge=.*4022000000 parameters.*not of Qwen3-8B's dimensions"):
        Judge.of(other, str(evidence(tmp_path / "e.json")), 16)
    nothing = evidence(tmp_path / "none.json", measured={"tokens_per_s_synthetic": {}})
    with pytest.raises(ConfigError, match=r"adaptive\.judge=.*none\.json.*at least one steady round time"):
        Judge.of(cost, str(nothing), 16)


def trace() -> Trace:
    """One request of nine tokens, whose drafter is right at every place."""
    offers, ranks = np.tile(np.log(0.9 / 8.0 ** np.arange(8)), (8, 3, 1)), np.zeros((8, 3))
    output, tail = (np.arange(length, dtype=np.int32) for length in (9, 2))
    key = Key("p", 0, "made", "a", 0, 0, 0.0)
    return Trace(key, 200, "length", 0, offers.astype(np.float32), ranks.astype(np.int16), output, tail)


def test_ends_are_seen_as_late_as_on_the_engine_that_was_timed(tmp_path: Path) -> None:
    """One prompt three times in one place: 8 tokens each, and a step more for the two that another waits for."""
    cost = load_cost(cost_file(tmp_path / "cost.json"))
    overlapping = replace(cost, fingerprint={**SETUP, "overlap": "True"})

    def found(own: CostModel) -> Row:
        rows, _ = compare("g", 0.0, [trace()], Candidates((3,), ()), own, [1], ["cost_optimal"], 3)
        return next(row for row in rows if row.kind == "autoregressive")

    at_once, late = found(cost), found(overlapping)
    assert (at_once.steps, late.steps, late.rounds, late.emitted) == (24, 26, 24, 24)
    assert at_once.tokens_per_s / late.tokens_per_s == pytest.approx(26 / 24)


def test_a_step_without_a_price_is_no_speed(tmp_path: Path) -> None:
    """The judge lost the rounds of one width at batch 2, which the policy takes there: it is left out and named."""
    cost = load_cost(cost_file(tmp_path / "cost.json"))
    rounds = {"dflash_16": {"2": UNSTEADY}}
    rounds["ddtree_8"] = {"1": {"median": 5.0, "low": 1.0, "high": 99.0, "n": 5}}
    place = evidence(tmp_path / "e.json", measured={"round_ms": rounds})
    told = Judge.of(cost, str(place), 16)
    assert told.left_out == ("dflash_16 at batch 2 (unsteady)",)
    candidates = Candidates((7,), ())

    def found(judge: Judge, size: int, knows: bool = False) -> tuple[list[Row], dict[str | None, str]]:
        rows, left = compare("g", 0.0, [trace()], candidates, cost, [size], ["caddtree"], 1, judge, knows)
        return rows, {each["arm"]: each["reason"] for each in left}

    rows, left = found(told, 1)
    assert left == {}
    assert {row.arm for row in rows} == {"autoregressive", "tree 7", "caddtree", "oracle"}
    assert all(row.tokens_per_s > 0 for row in rows)
    rows, left = found(told, 2)
    assert left == {"tree 7": UNPRICED, "caddtree": UNJUDGED}
    assert {row.arm for row in rows} == {"autoregressive", "oracle"}
    assert found(told, 2, knows=True)[1] == {"tree 7": UNPRICED, "caddtree": BLIND}
    plain = told.tables["autoregressive"]
    lost = replace(told, tables={**told.tables, "autoregressive": replace(plain, ms=np.full_like(plain.ms, np.nan))})
    rows, left = found(lost, 2)
    assert rows == []
    assert left == {"autoregressive": UNPRICED, "tree 7": UNPRICED, "caddtree": UNJUDGED, None: ALONE}
