"""An adaptive width without an engine: what is asked for, what it costs, what a policy is told, what it learns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ddbench.adaptive.mass import expectation, on_spine
from ddbench.adaptive.policy import Choice
from ddbench.cost.points import Point
from ddbench.errors import ConfigError
from ddbench.plugins.sglang import torch_ops as ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk
from ddbench.plugins.sglang.offers import AHEAD, Offers, Sightings
from ddbench.plugins.sglang.options import ATTENTION, COSTS, POLICY, WIDTHS, Sizes
from ddbench.plugins.sglang.pilot import Costs, Pilot, Plan
from ddbench.plugins.sglang.setup import built_of
from ddbench.tree import build_tree
from runners.environments import our_hash

SIZES, ROWS, WORDS = Sizes(17, 6, 4), 3, 40
DIMENSIONS = "36 layers, 8 kv heads of 128, vocabulary 151936"
SETUP = {
    "engine": "sglang",
    "engine_version": "sglang 0.5.17 torch 2.11.0",
    "device": "a GPU",
    "dtype": "bfloat16",
    "build": "0123456789abcdef",
    "attention_backend": "triton",
    "verify_attention": "own",
    "target": DIMENSIONS,
    "parameters": "8190735360",
}
PLAN = Plan("cost_optimal", Path("none"), (1, 3, 9, 17))


def asked(**values: str) -> dict[str, str]:
    return {POLICY: "cost_optimal", COSTS: "costs.json"} | values


def test_what_is_asked_for() -> None:
    assert Plan.of(SIZES, {}) is None
    plan = Plan.of(SIZES, asked())
    assert plan is not None
    assert plan.widths == (1, 4, 8, 16, 17)
    plan = Plan.of(SIZES, asked(**{WIDTHS: "9,2"}))
    assert plan is not None
    assert plan.widths == (2, 9, 17)
    assert plan.candidates.trees == (1, 8, 16)
    assert plan.candidates.autoregressive is False
    assert PLAN.candidates.autoregressive is True


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({POLICY: "best"}, "policy='best'"),
        ({COSTS: ""}, "DDTREE_COSTS=''"),
        ({WIDTHS: "0,4"}, "DDTREE_WIDTHS='0,4'"),
        ({WIDTHS: "4,17"}, "DDTREE_WIDTHS='4,17'"),
        ({WIDTHS: "4;8"}, "DDTREE_WIDTHS='4;8'"),
    ],
)
def test_what_cannot_be_asked_for(values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Plan.of(SIZES, asked(**values))


def points(kind: str, widths: tuple[int, ...], slope: float) -> list[Point]:
    found = []
    for width in widths:
        for batch in (1, 2, 4):
            for context in (100.0, 400.0):
                ms = 2.0 + slope * width * batch + 0.001 * context * batch
                found.append(Point(width, batch, context, ms, ms * 0.99, ms * 1.01, 3))
    return found


def cost_file(folder: Path, **setup: str) -> Plan:
    from ddbench.cost.file import save_cost  # needs more than an engine's environment has

    path = folder / "costs.json"
    kinds = {"ddtree": points("ddtree", (3, 9, 17), 0.02), "autoregressive": points("autoregressive", (1,), 0.0)}
    save_cost(path, {**SETUP, "target": f"8191000000 parameters, {DIMENSIONS}", **setup}, kinds, {"how": "made up"})
    return Plan("cost_optimal", path, (1, 3, 9, 17))


def test_costs_are_those_of_this_setup_and_range(tmp_path: Path) -> None:
    plan = cost_file(tmp_path)
    costs = Costs.of(plan, SETUP, 4)
    inside = costs.round_ms(np.array([3, 17]), 2, 400.0)
    assert inside[0] < inside[1]
    assert costs.round_ms(9, 2, 5000.0) > costs.round_ms(9, 2, 400.0), "carried on in a line"
    assert costs.round_ms(9, 40, 400.0) == costs.round_ms(9, 4, 400.0), "a batch that has no graph"
    assert costs.autoregressive_ms(1, 400.0) > costs.autoregressive_ms(1, 100.0)
    with pytest.raises(ConfigError, match="device is a GPU there and another here"):
        Costs.of(plan, SETUP | {"device": "another"}, 4)
    with pytest.raises(ConfigError, match="batch"):
        Costs.of(plan, SETUP, 8)
    with pytest.raises(ConfigError, match="verify_width"):
        Costs.of(Plan("cost_optimal", plan.costs, (2, 17)), SETUP, 4)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ({"target": "5 parameters, 8 layers, 2 kv heads of 64, vocabulary 4096"}, "target is 5 parameters, 8 layers"),
        ({"target": "5 parameters, 1" + DIMENSIONS}, "136 layers"),
        ({"target": f"4022000000 parameters, {DIMENSIONS}"}, "parameters is 4022000000 there and 8190735360 here"),
        ({"build": "none"}, "build is none there and 0123456789abcdef here"),
        ({"verify_attention": "sglang"}, "verify_attention is sglang there and own here"),
        ({"attention_backend": "fa3"}, "attention_backend is fa3 there and triton here"),
    ],
)
def test_costs_of_another_model_build_or_attention_are_refused(
    tmp_path: Path, theirs: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        Costs.of(cost_file(tmp_path, **theirs), SETUP, 4)
    assert "\n" not in str(refused.value)


def test_what_a_server_says_it_is_built_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names under which SGLang keeps a target's dimensions; the plug-in is as it is hashed from outside."""
    config = SimpleNamespace(num_hidden_layers=36, num_key_value_heads=8, head_dim=128, vocab_size=151936)
    runner = SimpleNamespace(model_config=config, attn_backend=TritonAttnBackend(), model=torch.nn.Linear(3, 5))
    found = {"build": our_hash(), "attention_backend": "triton", "verify_attention": "own", "target": DIMENSIONS}
    found["parameters"] = "20"
    monkeypatch.delenv(ATTENTION, raising=False)
    assert built_of(runner) == found
    monkeypatch.setenv(ATTENTION, "sglang")
    assert built_of(runner) == found | {"verify_attention": "sglang"}
    config.quantization = "fp8"
    assert "parameters" not in built_of(runner)


class TritonAttnBackend:
    """Of the name of SGLang's."""


def offered() -> tuple[Offers, Trees, torch.Tensor]:
    """Two rows' candidates, their trees, and what is made of them."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(2, SIZES.block - 1, WORDS, generator=generator)
    log_probs, ids = logits.log_softmax(-1).sort(descending=True, dim=-1)
    log_probs, ids = log_probs[..., : SIZES.top_k], ids[..., : SIZES.top_k].to(torch.int32)
    trees = Trees(ROWS, SIZES.verify_width, SIZES.block, "cpu")
    trees.limit(Caps(SIZES.top_k, SIZES.block - 1, SIZES.verify_width - 1))
    ops.build(trees, log_probs, ids, torch.tensor([1, 2]))
    offers = Offers(ops, ROWS, SIZES, PLAN.candidates.trees, "cpu")
    offers.measure(trees, log_probs, ids)
    return offers, trees, log_probs


def test_an_offer_is_that_of_the_policies_own_definition() -> None:
    offers, _, log_probs = offered()
    tree = build_tree(log_probs, SIZES.verify_width - 1, SIZES.top_k)
    depth = SIZES.block - 1
    chain = log_probs[:, :, 0].double().cumsum(1).numpy()
    spine = on_spine(tree).numpy()
    factors = np.linspace(0.5, 1.0, 2 * depth).reshape(2, depth)
    expected, mass = expectation(tree.scores.numpy(), tree.depths.numpy(), spine, chain, PLAN.candidates, factors)
    found = offers.mass[:2].double().numpy()
    np.testing.assert_allclose(found.sum(0), mass, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose((found * factors).sum(axis=(2, 3)), expected, rtol=1e-5)


class Free:
    """Width costs nothing."""

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return 1.0

    chain_ms = round_ms

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        return 100.0


def pilot() -> tuple[Pilot, Offers, Trees]:
    offers, trees, _ = offered()
    return Pilot(PLAN, Sightings(offers, SIZES.block), Free(), SIZES.block - 1), offers, trees


def test_learning_counts_the_nodes_of_the_choice() -> None:
    found, _, trees = pilot()
    walk = Walk(ROWS, SIZES.block, "cpu")
    choices = torch.zeros(2, SIZES.verify_width, dtype=torch.int64)
    for row in range(2):  # down to the last node of the window
        node = SIZES.verify_width - 1
        while node > 0:
            parent = int(trees.parents[row, node])
            choices[row, parent], node = trees.tokens[row, node], parent
    ops.walk(trees, choices, torch.tensor([5, 9]), walk)
    found.sightings.add(2, 17, 7.0, walk)
    (seen,) = found.sightings.arrived()
    mass = seen.mass.astype(float).sum(axis=0)
    paths = [[int(node) for node in row if node > 0] for row in seen.path]
    assert max(max(path) for path in paths) == 16
    for width in (3, 9, 17):
        kept = found._kept(seen, mass, Choice("tree", width - 1))
        assert kept.sum() == sum(node < width for path in paths for node in path)
        assert kept[1].sum() == sum(int(seen.chain[r, n]) for r, path in enumerate(paths) for n in path if n < width)
    narrow = type(seen)(3, seen.context, seen.mass, np.where(seen.path < 3, seen.path, -1), seen.chain)
    kept = found._kept(narrow, mass, Choice("tree", 16))
    own = found._kept(narrow, mass, Choice("tree", 2))
    np.testing.assert_allclose(kept, own + mass[-1] - mass[0])


def test_a_policy_sees_rounds_in_order_and_forgets_what_it_does_not_fetch() -> None:
    found, _, trees = pilot()
    walk = Walk(ROWS, SIZES.block, "cpu")
    ops.walk(trees, torch.zeros(2, SIZES.verify_width, dtype=torch.int64), torch.tensor([5, 9]), walk)
    for number in range(AHEAD + 3):
        found.sightings.add(2, 17, float(number), walk)
    contexts = [seen.context for seen in found.sightings.arrived()]
    assert contexts == [3.0, 4.0, 5.0, 6.0]
    assert list(found.sightings.arrived()) == []
    assert found.next(2, 10.0) == 17
    found.pin(9)
    assert [found.next(2, 10.0), found.describe()["pinned"]] == [9, 9]
    found.pin(0)
    assert found.next(2, 10.0) == 17
    assert found.describe()["rounds_of_policy"] == {"17": 2}
    with pytest.raises(ConfigError, match="ddtree_verify=5"):
        found.pin(5)
