"""The build kernel writes the trees of `ddbench.tree.build_tree`, bit for bit."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DEVICES, on_device, options, same
from trees import KINDS, draft

from ddbench.plugins.vllm import torch_ops
from ddbench.plugins.vllm.kernels import ops
from ddbench.plugins.vllm.options import Options
from ddbench.plugins.vllm.state import TreeState

STEPS = (0.0, -1e-9, -3e-8, -0.25, -0.5, -0.5000001, -1.0, -2.0, -7.0, -3e38, -math.inf)


def check(asked: Options, log_probs: torch.Tensor, device: str, twin_input: torch.Tensor | None = None) -> None:
    batch, depth, k = log_probs.shape
    ids = torch.arange(batch * depth * k, dtype=torch.int32).view(batch, depth, k) + 1000
    slots = torch.arange(batch - 1, -1, -1) + 1
    expected = TreeState(batch + 2, asked.nodes, torch.device("cpu"))
    found = TreeState(batch + 2, asked.nodes, torch.device(device))
    for state in (expected, found):
        for table in (state.tokens, state.parents, state.depths, state.mask):
            table.fill_(77)
    torch_ops.write_trees(expected, asked, log_probs if twin_input is None else twin_input, ids, slots)
    made = ops.write_trees(found, asked, log_probs.to(device), ids.to(device), slots.to(device))
    same(found, expected, (asked, log_probs))
    assert torch.equal(made.cpu(), expected.tokens[slots])


@pytest.mark.parametrize("device", DEVICES)
@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_ties_of_every_kind(device: str, data: st.DataObject) -> None:
    on_device(device)
    batch, depth, k = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    row = st.lists(st.sampled_from(STEPS), min_size=k, max_size=k)
    rows = [[sorted(data.draw(row), reverse=True) for _ in range(depth)] for _ in range(batch)]
    nodes = data.draw(st.integers(1, 40))
    rest: dict[str, object] = {}
    if data.draw(st.booleans()):
        rest["width"] = data.draw(st.integers(1, k + 1))
    if data.draw(st.booleans()):
        rest["depth"] = data.draw(st.integers(1, depth))
    if data.draw(st.booleans()):
        rest["min_log_prob"] = data.draw(st.sampled_from([0.0, -0.5, -1.0, -1.7, -4.0, -math.inf]))
    if nodes >= rest.get("depth", depth):  # type: ignore[operator]
        rest["force_spine"] = data.draw(st.booleans())
    check(options(nodes, depth + 1, **rest), torch.tensor(rows), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("nodes", [1, 7, 15, 63, 127])
def test_all_kinds_of_drafts(device: str, kind: str, nodes: int) -> None:
    on_device(device)
    if device == "cpu" and nodes == 127 and kind not in ("whole", "zero"):
        pytest.skip("too long for the interpreter, a GPU runs it")
    for seed in range(1 if device == "cpu" else 40):
        log_probs = draft(1 if device == "cpu" else 16, 15, nodes, kind, seed)
        check(options(nodes, 16), log_probs, device)
        if nodes >= 15:
            check(options(nodes, 16, width=4, min_log_prob=-9.0, force_spine=True), log_probs, device)


@pytest.mark.parametrize("device", DEVICES)
def test_sixteen_levels_and_a_deep_chain(device: str) -> None:
    on_device(device)
    check(options(127, 17), torch.zeros(1, 16, 2), device)
    check(options(16, 17, width=1), draft(2, 16, 3, "smooth", 5), device)
    check(options(127, 17), draft(2, 16, 127, "absorbed", 5), device)


@pytest.mark.parametrize("device", DEVICES)
def test_nan_makes_no_node_and_sums_that_collapse(device: str) -> None:
    on_device(device)
    cut = draft(2, 3, 4, "smooth", 0)
    cut[0, :, 2:] = -torch.inf
    spoilt = cut.clone()
    spoilt[0, :, 2:] = torch.nan
    check(options(10, 4), spoilt, device, twin_input=cut)
    log_probs = torch.tensor([[[-1.0, -1.5, -2.0, -2.5], [-16777216.0, -16777217.0, -3e7, -4e7]]])
    for nodes in range(1, 12):
        check(options(nodes, 3), log_probs, device)
    check(options(5, 4), torch.full((2, 3, 4), -torch.inf), device)
    check(options(5, 4), torch.tensor([[[1e-6, -1.0], [1e-6, -1.0], [0.0, -1.0]]]), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_and_strides(device: str, dtype: torch.dtype) -> None:
    on_device(device)
    log_probs = draft(2, 4, 8, "smooth", 1).to(dtype)
    check(options(12, 5), log_probs.transpose(0, 2).contiguous().transpose(0, 2), device)
