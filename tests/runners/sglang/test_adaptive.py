"""Arms with a policy: what their server is told, what is looked for in it, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engines import cell, spec, write_stand_in
from sglang_arms import GIVEN, GPU, arm

from ddbench.cost import CostModel
from ddbench.cost.file import save_cost
from ddbench.cost.model import load_cost
from ddbench.cost.points import Point
from ddbench.errors import ConfigError
from ddbench.plugins.sglang.options import COSTS, POLICY, WIDTHS
from ddbench.records import Arm
from experiments.adaptive.arms import cost_id
from runners.base import CellJob
from runners.hosts import LocalHost
from runners.random_models import BLOCK_SIZE, RandomPair, write_random_pair
from runners.sglang.adaptive import environment, refuse_batch, refuse_engine, widths_of
from runners.sglang.info import tree_differences
from runners.sglang.runner import SglangRunner

SMALL = replace(GIVEN, context_length=512)
DEMANDS = replace(GPU, batch_size=2, most_width=BLOCK_SIZE, context_length=512)
WIDTHS_MEASURED = (4, 8, 11)


@pytest.fixture
def cost(tmp_path: Path) -> CostModel:
    kinds = {"ddtree": WIDTHS_MEASURED, "autoregressive": (1,)}
    points = {
        kind: [
            Point(width, batch, context, 1.0 + width * batch / 90, 1.0, 9.0, 3)
            for width in widths
            for batch in (1, 2)
            for context in (10.0, 90.0)
        ]
        for kind, widths in kinds.items()
    }
    return save_cost(tmp_path / "cost.json", {"engine": "sglang"}, points, {"how": "made up"})


def chosen(policy: str | None = "cost_optimal") -> Arm:
    return replace(arm("ddtree", SMALL, DEMANDS, width=None, depth=7, nodes=10), policy=policy, cost="hash")


def test_a_server_is_told_its_policy_its_costs_and_its_widths(tmp_path: Path, cost: CostModel) -> None:
    assert widths_of(chosen()) == (1, 4, 8, 11)
    told = environment(chosen(), cost, tmp_path / "scratch", LocalHost())
    assert {name: told[name] for name in (POLICY, WIDTHS)} == {POLICY: "cost_optimal", WIDTHS: "1,4,8"}
    assert load_cost(told[COSTS]) == cost
    assert environment(chosen(None), None, tmp_path, LocalHost()) == {}
    with pytest.raises(ConfigError, match=r"strategy\.cost=None"):
        environment(chosen(), None, tmp_path, LocalHost())


def test_a_server_reckons_with_the_costs_that_its_arm_names(tmp_path: Path, cost: CostModel) -> None:
    """Also where a fit of today would say otherwise: the file was fitted by another version, or by hand."""
    other = replace(cost, fits={**cost.fits, "ddtree": replace(cost.fits["ddtree"], base=77.0)})
    told = environment(chosen(), other, tmp_path / "scratch", LocalHost())
    there = load_cost(told[COSTS])
    assert float(there.round_ms(4, 1, 50)) > 77
    assert cost_id(there) == cost_id(other) != cost_id(cost)


def test_what_cannot_be(cost: CostModel) -> None:
    flags = {"tensor_parallel": 1, "attention_backend": "triton"}
    assert refuse_engine("0.5.17", flags) is None
    assert refuse_engine(None, flags) is None  # not known before there is an SGLang
    assert "tensor parallelism" in (refuse_engine(None, flags | {"tensor_parallel": 2}) or "")
    assert "needs SGLang 0.5.17, not 0.5.23" in (refuse_engine("0.5.23", flags) or "")
    assert "tensor parallelism" in (refuse_engine("0.5.17", flags | {"tensor_parallel": 2}) or "")
    assert "attention_backend=triton" in (refuse_engine("0.5.17", flags | {"attention_backend": "flashinfer"}) or "")
    assert refuse_batch(cost, 10, 2) is None
    assert "batch" in (refuse_batch(cost, 10, 3) or "")
    assert "verify_width" in (refuse_batch(cost, 31, 2) or "")


@pytest.mark.parametrize(
    ("told", "policy", "says"),
    [
        (None, None, []),
        ({"policy": "caddtree", "pinned": None}, "caddtree", []),
        ({"policy": "caddtree", "pinned": None}, None, ["its verify width is chosen by caddtree, not None"]),
        (None, "caddtree", ["its verify width is chosen by None, not caddtree"]),
        ({"policy": "caddtree", "pinned": 8}, "caddtree", ["its verify width is pinned at 8"]),
    ],
)
def test_a_server_that_chooses_otherwise_is_another(
    told: dict[str, object] | None, policy: str, says: list[str]
) -> None:
    info = {"internal_states": [{"ddtree": {"nodes": 10, "recording": None, "adaptive": told}}]}
    assert tree_differences({"nodes": 10}, info, policy=policy) == says


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> RandomPair:
    return write_random_pair(tmp_path_factory.mktemp("models"), 0, 512)


def test_its_cells_are_measured_and_say_nothing_of_drafted_nodes(
    pair: RandomPair, tmp_path: Path, cost: CostModel
) -> None:
    import pyarrow.parquet as pq

    runner = SglangRunner(replace(spec(write_stand_in(tmp_path), pair, "ddtree"), cost=cost))
    folder = tmp_path / "cell"
    folder.mkdir()
    try:
        runner.start()
        outcome = runner.run_cell(CellJob(cell(chosen()), folder, 2), lambda done, total: None)
    finally:
        runner.stop()
    assert outcome.status == "ok", outcome.reason
    rows = pq.read_table(folder / "requests.parquet").to_pylist()
    assert all(row["rounds"] > 0 and row["drafted"] is None for row in rows)
