"""Scores and chain of standing trees equal their torch twin, and that `ddbench.tree`; passes of the root alone."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_kernels import DEVICES, on_device
from sgl_trees import TABLES, WALKED, case_of, copy_of, same

from ddbench.adaptive.mass import on_spine
from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels import ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Walk
from ddbench.plugins.sglang.stages import Stage
from ddbench.tree import build_tree

CAPS = (None, Caps(3, 4, 9), Caps(11, 7, 11, None, True))


def weighed(case: object, where: str, steps: object) -> tuple[torch.Tensor, torch.Tensor]:
    trees = copy_of(case.trees, where)  # type: ignore[attr-defined]
    scores = torch.full(trees.tokens.shape, 7.0, device=where)
    chain = torch.full(trees.tokens.shape, 7, dtype=torch.int32, device=where)
    given = (case.log_probs.to(where), case.ids.to(where))  # type: ignore[attr-defined]
    steps.weigh(trees, *given, scores, chain)  # type: ignore[attr-defined]
    return scores.cpu(), chain.cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("width", [2, 33, pytest.param(128, marks=pytest.mark.gpu)])
def test_scores_and_chain(device: str, width: int, caps: Caps | None) -> None:
    on_device(device)
    if caps is not None and width == 2:
        caps = Caps(1, 1, 1)
    case = case_of(width, 3, kind="smooth", caps=caps)
    scores, chain = weighed(case, "cpu", torch_ops)
    found, on = weighed(case, device, ops)
    rows = case.rows
    assert torch.equal(on, chain)
    torch.testing.assert_close(found, scores, rtol=1e-5, atol=1e-5)
    assert (scores[rows:] == 7.0).all()
    limits = Caps.of(case.trees.caps.tolist())
    depth = case.log_probs.shape[1]
    tree = build_tree(
        case.log_probs, limits.nodes, limits.width, min(limits.depth, depth), limits.min_log_prob, limits.force_spine
    )
    nodes = tree.scores.shape[1]
    torch.testing.assert_close(scores[:rows, 1 : nodes + 1], tree.scores.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(chain[:rows, 1 : nodes + 1].bool(), on_spine(tree) & (tree.depths > 0))
    assert (scores[:rows, nodes + 1 :] == float("-inf")).all()
    assert (scores[:rows, 0] == float("-inf")).all()
    if width > 2:
        assert 1 < int(chain[:rows].sum()) < int((case.trees.depths[:rows] > 0).sum())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("narrow", [1, 2, 9, 31])
def test_a_narrow_pass_has_the_first_nodes(device: str, narrow: int) -> None:
    """Its tables are those of a build at that width; its layout and its walk are the twin's."""
    on_device(device)
    case = case_of(33, 5)
    rows, wide = case.rows, copy_of(case.trees, device)
    stage, twin = (Stage.narrow(narrow, rows + 2, case.trees.block, where) for where in (device, "cpu"))
    if narrow > 1:
        built = case_of(narrow, 5, k=12)
        torch_ops.build(built.trees, case.log_probs[..., : narrow - 1], case.ids[..., : narrow - 1], case.roots)
    trees = stage.take(wide, rows, case.roots.to(device))
    expected = twin.take(case.trees, rows, case.roots)
    same(trees, expected)
    if narrow > 1:
        for name in TABLES:
            assert torch.equal(getattr(expected, name)[:rows], getattr(built.trees, name)[:rows]), name
    positions, found = twin.positions[:rows], stage.positions[:rows]
    mask = torch.full((rows * narrow * (60 + narrow),), 7, dtype=torch.uint8)
    found_mask = mask.to(device)
    torch_ops.lay_out(expected, case.seq_lens, positions, mask)
    ops.lay_out(trees, case.seq_lens.to(device), found, found_mask)
    assert torch.equal(found.cpu(), positions)
    assert torch.equal(found_mask.cpu(), mask)
    choices = case.choices()[:, :narrow].contiguous()
    out, walked = Walk(rows + 2, case.trees.block, device), Walk(rows + 2, case.trees.block, "cpu")
    torch_ops.walk(expected, choices, case.seq_lens, walked)
    ops.walk(trees, choices.to(device), case.seq_lens.to(device), out)
    same(out, walked, WALKED)
    if narrow == 1:
        assert walked.commit_lens[:rows].tolist() == [1] * rows
        assert walked.bonus[:rows].tolist() == choices[:, 0].tolist()
