"""``experiment=adaptive`` and arms with a policy on random models: marks, verdicts against planted costs, refusals."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import ddbench as package
from ddbench.cost import CostModel, Point, load_cost
from ddbench.cost.file import save_cost
from ddbench.errors import ConfigError
from ddbench.records import Cell
from experiments import report
from experiments.adaptive.arms import adaptive_arms, check_setup, cost_id, cost_of
from experiments.adaptive.compare import Row, summary, verdicts
from experiments.adaptive.run import run
from experiments.engines import engine_of
from experiments.plan import Facts, make_plan
from experiments.record import run as recording
from experiments.settings import Settings, load_settings
from experiments.shapes import Shape
from experiments.step_cost.fingerprint import fingerprint
from reports.figures.adaptive import against_best
from runners.machine import machine_facts
from runners.worker import source_hash

Make = Callable[..., dict[str, Any]]
POINTS = {"autoregressive": (1,), "dflash": (4, 8, 16), "ddtree": (2, 5, 9, 13)}


@pytest.fixture(scope="module")
def make(ddbench: Any) -> Make:
    return ddbench.composed("model=", "tracking=", "engine.", "workload", "output_dir=", "load.")


@pytest.fixture(scope="module")
def settings(make: Make) -> Settings:
    return load_settings(make("smoke"), "id")


@pytest.fixture(scope="module")
def recorded(make: Make) -> Path:
    return Path(recording.run(make("record", "record.nodes=12"), "made")["run"])


def planted(place: Path, settings: Settings, node_ms: float, **other: str) -> Path:
    """A cost file of this very setup: ``node_ms`` for every token of the pass, batches up to 4."""
    setup = fingerprint(
        "reference",
        engine_of("reference").version(settings),
        source_hash(Path(package.__file__).parent),
        None,
        machine_facts()["cpu"],
        settings.model,
        {"dtype": settings.engine.dtype, "threads": settings.engine.threads},
    )
    base = {"autoregressive": 2.0, "dflash": 3.0, "ddtree": 3.5}
    points = {
        kind: [
            Point(width, batch, context, base[kind] + node_ms * width * batch + 0.001 * batch * context, 0.1, 99.0, 3)
            for width in widths
            for batch in (1, 2, 4)
            for context in (1.0, 60.0)
        ]
        for kind, widths in POINTS.items()
    }
    save_cost(place, {**setup, **other}, points, {"how": "planted"})
    return place


def test_a_comparison_from_its_files(make: Make, settings: Settings, recorded: Path, tmp_path: Path) -> None:
    cost = planted(tmp_path / "cost.json", settings, 0.05)
    asked = ("adaptive.batch_size=[1,4,8]", "adaptive.decode=true", "adaptive.live.batch_size=[2]")
    small = ("adaptive.live.nodes=[4]", "adaptive.live.prompts=3", "adaptive.live.turns=1")
    done = run(make("adaptive", f"run={recorded}", f"cost={cost}", *asked, *small), "a")
    told = json.loads((Path(done["run"]) / "adaptive.json").read_text(encoding="utf-8"))
    frame = pd.read_parquet(done["table"])
    assert frame["replayed"].all()
    assert frame["predicted"].all()
    assert {"mean_verify_width", "autoregressive_share", "chain_share"} <= set(frame.columns)
    assert done["replayed"] is done["predicted"] is told["predicted"] is True
    assert set(frame["kind"]) == {"autoregressive", "chain", "tree", "policy", "oracle"}
    whole = [each for each in told["left_out"] if each["arm"] is None]
    assert {each["batch_size"] for each in whole} == {8}  # not measured there
    assert "was not measured at a batch of 5" in whole[0]["reason"]
    assert {each["arm"] for each in told["left_out"]} == {None, "tree 16"}  # neither was a tree of 16
    assert len(told["verdicts"]) == 3 * len(frame.groupby(["group", "batch_size"]))
    assert all(each["of_oracle"] <= 1 + 1e-9 for each in told["verdicts"])
    tops = frame.groupby(["group", "batch_size"])["tokens_per_s"].max()
    oracle = frame[frame["kind"] == "oracle"].set_index(["group", "batch_size"])["tokens_per_s"]
    assert (oracle >= tops - 1e-9).all()
    page = Path(done["report"]).read_text(encoding="utf-8")
    assert page.startswith("# PREDICTED")
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert all("PREDICTED" in line for line in headings if "believed" not in line and "Measured" not in line)
    measured = headings.index("## Measured: decoded, of the best single arm")
    assert measured < next(place for place, line in enumerate(headings) if "never slower" in line)
    assert "Batch 8 is left out" in page
    assert (Path(done["run"]) / "figures" / "adaptive_T0.png").stat().st_size > 10_000
    (live,) = told["live"]["points"]
    assert {arm["arm"] for arm in live["arms"]} >= {"autoregressive", "tree 4", "cost_optimal", "caddtree"}
    assert all(arm["same_text"] == 3 for arm in live["arms"])
    assert all(arm["as_replayed"] == 3 for arm in live["arms"] if arm["policy"])
    with pytest.raises(ConfigError, match="run_id"):
        run(make("adaptive", f"run={recorded}", f"cost={cost}"), "a")
    Path(done["report"]).unlink()
    assert report.run({"run": done["run"]}, "again")["report"] == done["report"]
    assert Path(done["report"]).read_text(encoding="utf-8") == page


def test_what_cannot_be_compared(make: Make, settings: Settings, recorded: Path, tmp_path: Path) -> None:
    cost = planted(tmp_path / "cost.json", settings, 0.05)
    for overrides, match in (
        ((f"run={recorded}",), "cost=None: a cost file"),
        ((f"run={recorded}", f"cost={cost}", "sweep.batch_size=[1]"), r"sweep.batch_size=\[1\]: null: .* adaptive"),
        ((f"run={recorded}", f"cost={cost}", f"adaptive.evidence={tmp_path}"), "adaptive.evidence=.*can be written"),
        ((f"run={recorded}", f"cost={cost}", f"output_dir={cost}/x"), "output_dir=.*a folder that can be written"),
        ((f"run={recorded}", f"cost={cost}", "adaptive.nodes=999"), "the candidates that were recorded"),
        ((f"run={recorded}", f"cost={cost}", "adaptive.policies=[clever]"), "adaptive.policies"),
        ((f"run={recorded}", f"cost={cost}", "adaptive.batch_size=[9]"), "was not measured at a batch of 5"),
        (
            (f"run={recorded}", f"cost={planted(tmp_path / 'b.json', settings, 0.05, target='another')}"),
            "not of another",
        ),
    ):
        with pytest.raises(ConfigError, match=match):
            run(make("adaptive", *overrides), "b")


def test_verdicts_are_against_the_best_single_arm() -> None:
    def row(arm: str, kind: str, speed: float, size: int = 1) -> Row:
        return Row("g", 0.0, size, arm, kind, None, speed, 1, 1, 1, 1.0, 0.0, 0.0)

    rows = [
        *(row("autoregressive", "autoregressive", 100.0), row("chain 3", "chain", 90.0), row("tree 4", "tree", 80.0)),
        *(row("p", "policy", 97.0), row("oracle", "oracle", 200.0)),
        *(row("tree 4", "tree", 50.0, 2), row("p", "policy", 51.0, 2), row("oracle", "oracle", 102.0, 2)),
    ]
    first, second = verdicts(rows)
    assert (first.best, first.ratio, first.of_oracle) == ("autoregressive", 0.97, 0.485)
    assert (second.best, second.ratio, second.of_oracle) == ("tree 4", 1.02, 0.5)
    told = summary([first, second], "p")
    assert [each["batch_size"] for each in told["below"]] == [1]
    assert [each["batch_size"] for each in told["above"]] == [2]
    assert not told["never_more_than_2_percent_below"]
    assert summary([second], "p")["never_more_than_2_percent_below"]


def facts(cost: CostModel | None) -> Facts:
    return Facts("engine 1", {"target": "t", "dflash": "d", "eagle": "e"}, "hash", 8, {}, cost=cost)


def with_policies(settings: Settings, *policies: str | None, **sweep: Any) -> Settings:
    strategy = replace(settings.strategy, names=("autoregressive", "ddtree"), policies=policies)
    axes = {"strategy": ("autoregressive", "ddtree"), "width": (2, 4), "depth": (4, 7), "nodes": (8, 12), **sweep}
    return replace(settings, strategy=strategy, sweep=replace(settings.sweep, **axes))


def test_a_policy_is_an_arm_of_its_own(settings: Settings, tmp_path: Path) -> None:
    cost = load_cost(planted(tmp_path / "a.json", settings, 0.05))
    other = load_cost(planted(tmp_path / "b.json", settings, 0.06))
    asked = with_policies(settings, None, "cost_optimal", "caddtree")
    plan = make_plan(asked, facts(cost))
    arms = [planned.cell.arm for planned in plan.cells if planned.cell.batch_size == 1]
    chosen = [(arm.policy, arm.width, arm.depth, arm.nodes) for arm in arms if arm.policy]
    assert chosen == [(name, None, depth, 12) for name in ("cost_optimal", "caddtree") for depth in (4, 7)]
    assert len([arm for arm in arms if arm.strategy == "ddtree" and arm.policy is None]) == 8
    assert {arm.cost for arm in arms if arm.policy} == {cost_id(cost)} != {cost_id(other)}
    assert all(arm.cost is None for arm in arms if arm.policy is None)
    ids = {planned.cell.cell_id for planned in plan.cells}
    assert len(ids) == len(plan.cells)
    again = make_plan(with_policies(settings, "cost_optimal"), facts(other))
    mine = [planned for planned in again.cells if planned.cell.arm.strategy == "ddtree"]
    assert all(planned.cell.arm.policy == "cost_optimal" for planned in mine)
    assert not {planned.cell.cell_id for planned in mine} & ids


def test_cells_without_a_policy_keep_their_ids(settings: Settings) -> None:
    """Stored runs are gone on with: what an arm can have since does not change the id of one that has none."""
    cell = make_plan(settings, facts(None)).cells[0].cell
    data = json.loads(json.dumps(cell, default=vars))
    del data["arm"]["policy"], data["arm"]["cost"]
    old = Cell.from_dict(data)
    assert old.cell_id == cell.cell_id
    assert replace(cell, arm=replace(cell.arm, policy="caddtree")).cell_id != cell.cell_id


def test_what_an_engine_or_a_cost_cannot_do_is_unsupported(settings: Settings, tmp_path: Path) -> None:
    cost = load_cost(planted(tmp_path / "a.json", settings, 0.05))
    asked = with_policies(settings, "cost_optimal", batch_size=(4, 8))
    reasons = {
        planned.cell.batch_size: planned.unsupported
        for planned in make_plan(asked, facts(cost)).cells
        if planned.cell.arm.policy
    }
    assert reasons[4] is None
    assert "was not measured at a batch of 5" in str(reasons[8])
    vllm = replace(asked, engine=replace(asked.engine, name="vllm"))
    assert [shape for _, shape in adaptive_arms(vllm, [("ddtree", Shape(2, 7, 8))])] == [Shape(None, 7, 8)]
    arms = [planned for planned in make_plan(vllm, facts(cost)).cells if planned.cell.arm.policy]
    assert all("vllm engine cannot change its budget" in str(planned.unsupported) for planned in arms)


def test_the_cost_of_another_setup_is_refused(settings: Settings, tmp_path: Path) -> None:
    version, environment = engine_of("reference").version(settings), {**machine_facts(), "engine_gpu": None}
    check_setup(load_cost(planted(tmp_path / "a.json", settings, 0.05)), settings, version, environment)
    check_setup(load_cost(planted(tmp_path / "b.json", settings, 0.05, clock="cpu")), settings, version, environment)
    for name in ("build", "device", "dtype", "drafter", "engine_version"):
        other = load_cost(planted(tmp_path / "c.json", settings, 0.05, **{name: "another"}))
        with pytest.raises(ConfigError, match=f"{name} is another there"):
            check_setup(other, settings, version, environment)
    graphs = replace(settings, engine=replace(settings.engine, flags={"cuda_graphs": True}))
    with pytest.raises(ConfigError, match="cuda_graphs is unknown there and True here"):
        check_setup(load_cost(tmp_path / "a.json"), graphs, version, environment)
    without = replace(settings, engine=replace(settings.engine, flags={"cuda_graphs": False}))
    check_setup(load_cost(tmp_path / "a.json"), without, version, environment)
    assert platform.python_version() == environment["python"]


def test_a_policy_needs_a_cost_file(settings: Settings, tmp_path: Path) -> None:
    asked = with_policies(settings, None, "caddtree")
    for path, match in (
        (None, "strategy.cost=None: a cost file of this setup"),
        ("nowhere", "strategy.cost='nowhere'"),
    ):
        with pytest.raises(ConfigError, match=match):
            cost_of(replace(asked, strategy=replace(asked.strategy, cost=path)))
    place = str(planted(tmp_path / "cost.json", settings, 0.05))
    assert cost_of(replace(asked, strategy=replace(asked.strategy, cost=place))) == load_cost(place)
    assert cost_of(with_policies(settings, None)) is None
    with pytest.raises(ConfigError, match=r"strategy\.force_spine=True: not with caddtree"):
        replace(asked.strategy, force_spine=True)
    with pytest.raises(ConfigError, match=r"strategy\.policies"):
        replace(asked.strategy, policies=("clever",))


def test_a_sweep_with_policies(ddbench: Any, settings: Settings, tmp_path: Path) -> None:
    """Through the command line: arms, rounds with their choices, the ledger, labels and the recipe of the report."""
    cost = planted(tmp_path / "cost.json", settings, 0.05)
    grid = ("sweep.width=[null]", "sweep.depth=[null]", "sweep.nodes=[4,8]", "sweep.batch_size=[2]")
    done = ddbench.run("run_id=policies", "strategy=ddtree_adaptive", f"strategy.cost={cost}", *grid)
    assert done.code == 0, done.err
    folder = Path(done.summary["run"])
    results = pd.read_parquet(folder / "results.parquet")
    chosen = results[results["policy"].notna()]
    assert sorted(chosen["policy"]) == ["caddtree", "cost_optimal"]
    assert chosen["verify_width"].isna().all()
    assert (results["lossless_share"].dropna() == 1).all()
    assert chosen["lossless_share"].notna().all()
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert "ddtree cost_optimal d7 n<=8" in page
    for cell_id in chosen["cell_ids"].explode():
        rounds = pd.read_parquet(folder / "cells" / cell_id / "rounds.parquet")
        assert rounds["choice"].isin(["tree", "chain", "autoregressive"]).all()
        assert (rounds["verify_width"] <= rounds["chosen_nodes"] + 1).all()
    fixed = results[(results["strategy"] == "ddtree") & results["policy"].isna()]["cell_ids"].iloc[0][0]
    assert pd.read_parquet(folder / "cells" / fixed / "rounds.parquet")["choice"].isna().all()
    stale = planted(tmp_path / "stale.json", settings, 0.05, build="another")
    refused = ddbench.run("run_id=stale", "strategy=ddtree_adaptive", f"strategy.cost={stale}", *grid)
    assert refused.code == 2
    assert "build is another there" in refused.errors[-1]


def test_single_arms_without_a_price_are_named(settings: Settings, recorded: Path, make: Make, tmp_path: Path) -> None:
    """The narrow cost has no tree of one node: a policy may not take it, and neither may hindsight."""
    cost = planted(tmp_path / "cost.json", settings, 0.05)
    data = json.loads(cost.read_text(encoding="utf-8"))
    for name in ("verify_width", "tokens"):
        data["kinds"]["ddtree"]["fit"]["measured"][name][0] = 5
    cost.write_text(json.dumps(data), encoding="utf-8")
    asked = ("adaptive.batch_size=[1]", "adaptive.policies=[caddtree]")
    done = run(make("adaptive", f"run={recorded}", f"cost={cost}", *asked), "narrow")
    told = json.loads((Path(done["run"]) / "adaptive.json").read_text(encoding="utf-8"))
    assert {each["arm"] for each in told["left_out"]} == {"tree 1", "tree 2", "tree 3", "tree 16"}
    page = Path(done["report"]).read_text(encoding="utf-8")
    assert "No single arm at batch 1: tree 1, tree 2, tree 3, tree 16; each has no price" in page
    assert "adaptive.decode=true" in page
    frame = pd.read_parquet(done["table"])
    assert (frame.loc[frame["kind"] == "policy", "tokens_per_s"] > 0).all()


def test_the_figure_shows_all_of_its_points() -> None:
    kinds = (("autoregressive", "autoregressive", 100.0), ("caddtree", "policy", 30.0), ("oracle", "oracle", 190.0))
    frame = pd.DataFrame(
        [
            {"group": "g", "temperature": 0.0, "batch_size": size, "arm": arm, "kind": kind, "tokens_per_s": speed}
            for size in (1, 2)
            for arm, kind, speed in kinds
        ]
    )
    figure = against_best(frame, {"model": "m", "cost": {"fingerprint": {"device": "d"}}}, 0.0)
    low, high = figure.axes[0].get_ylim()
    assert low < 0.3
    assert high > 1.9
