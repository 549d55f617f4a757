"""The build kernel writes the trees of its twin, and so of `ddbench.tree.build_tree`, bit for bit, under any caps."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sgl_kernels import DEVICES, on_device
from sgl_trees import KINDS, draft, same

from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels import ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees

STEPS = (0.0, -1e-9, -3e-8, -0.25, -0.5, -0.5000001, -1.0, -2.0, -7.0, -3e38, -math.inf)


def check(
    width: int,
    log_probs: torch.Tensor,
    device: str,
    caps: Caps | None = None,
    twin_input: torch.Tensor | None = None,
) -> None:
    rows, depth, k = log_probs.shape
    ids = torch.arange(rows * depth * k, dtype=torch.int32).view(rows, depth, k) + 1000
    blocks = torch.arange(rows * (depth + 1)).view(rows, depth + 1)
    expected, found = (Trees(rows + 1, width, depth + 1, where) for where in ("cpu", device))
    for trees in (expected, found):
        if caps is not None:
            trees.limit(caps)
        for table in (trees.tokens, trees.parents, trees.depths, trees.bits):
            table.fill_(77)
    torch_ops.build(expected, log_probs if twin_input is None else twin_input, ids, blocks[:, 0])
    ops.build(found, log_probs.to(device), ids.to(device), blocks.to(device)[:, 0])
    same(found, expected, note=(width, caps, log_probs))


@pytest.mark.parametrize("device", DEVICES)
@given(data=st.data())
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_ties_and_caps_of_every_kind(device: str, data: st.DataObject) -> None:
    on_device(device)
    depth, k, width = 6, 4, 41  # one kernel on a GPU, which takes a second to compile
    if device == "cpu":
        depth, k, width = (data.draw(st.integers(least, most)) for least, most in ((1, 6), (1, 4), (2, 41)))
    row = st.lists(st.sampled_from(STEPS), min_size=k, max_size=k)
    rows = [[sorted(data.draw(row), reverse=True) for _ in range(depth)] for _ in range(data.draw(st.integers(1, 2)))]
    limits = (st.integers(1, k), st.integers(1, depth), st.integers(1, width - 1))
    least = data.draw(st.sampled_from([None, None, 0.0, -0.5, -1.0, -1.7, -4.0, -math.inf]))
    caps = Caps(*(data.draw(limit) for limit in limits), least)
    if caps.nodes >= caps.depth and data.draw(st.booleans()):
        caps = Caps(caps.width, caps.depth, caps.nodes, least, True)
    check(width, torch.tensor(rows), device, caps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [2, 16, pytest.param(50, marks=pytest.mark.gpu), 128])
def test_all_kinds_of_drafts(device: str, kind: str, width: int) -> None:
    on_device(device)
    if device == "cpu" and width == 128 and kind != "whole":
        pytest.skip("too long for the interpreter, a GPU runs it")
    for seed in range(1 if device == "cpu" else 40):
        log_probs = draft(1 if device == "cpu" else 32, 15, min(width - 1, 24), kind, seed)
        check(width, log_probs, device)
        if width >= 16 and (device == "cuda" or width < 128):
            check(width, log_probs, device, Caps(4, 9, width - 3, -9.0, True))


@pytest.mark.parametrize("device", DEVICES)
def test_one_capture_s_caps_change_between_builds(device: str) -> None:
    on_device(device)
    log_probs = draft(2, 7, 6, "halves", 3)
    for caps in (Caps(1, 7, 7), Caps(6, 1, 6), Caps(6, 7, 1), Caps(3, 5, 20, None, True), Caps(2, 7, 23, -2.5)):
        check(24, log_probs, device, caps)


@pytest.mark.parametrize("device", DEVICES)
def test_sixteen_levels_nan_and_sums_that_collapse(device: str) -> None:
    on_device(device)
    check(17, draft(2, 16, 3, "smooth", 5), device, Caps(1, 16, 16))
    check(128 if device == "cuda" else 48, draft(1, 16, 5, "absorbed", 5), device)
    cut = draft(2, 3, 4, "smooth", 0)
    cut[0, :, 2:] = -torch.inf
    spoilt = cut.clone()
    spoilt[0, :, 2:] = torch.nan
    check(11, spoilt, device, twin_input=cut)
    sums = torch.tensor([[[-1.0, -1.5, -2.0, -2.5], [-16777216.0, -16777217.0, -3e7, -4e7]]])
    for nodes in range(1, 12):
        check(12, sums, device, Caps(4, 2, nodes))
    check(6, torch.full((2, 3, 4), -torch.inf), device)
    check(6, torch.tensor([[[1e-6, -1.0], [1e-6, -1.0], [0.0, -1.0]]]), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes_and_strides(device: str, dtype: torch.dtype) -> None:
    on_device(device)
    log_probs = draft(2, 4, 8, "smooth", 1).to(dtype)
    check(13, log_probs.transpose(0, 2).contiguous().transpose(0, 2), device)


@pytest.mark.parametrize("device", DEVICES)
def test_shapes_that_do_not_fit_the_buffers(device: str) -> None:
    on_device(device)
    trees = Trees(2, 8, 4, device)
    roots = torch.zeros(3, dtype=torch.int64, device=device)
    for rows, depth in ((3, 3), (2, 4)):
        log_probs = torch.zeros(rows, depth, 2, device=device)
        with pytest.raises(ValueError, match="at most"):
            ops.build(trees, log_probs, log_probs.int(), roots[:rows])
