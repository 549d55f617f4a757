"""The benchmark measures equal trees, and its frozen baseline builds the published tree."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.heap_baseline import heap_baseline
from benchmarks.tree_build import drafts, measure, summary
from ddbench.tree import build_tree


def test_the_baseline_builds_the_same_nodes() -> None:
    log_probs = drafts("typical", 4, 64, "cpu")
    tree = build_tree(log_probs, 64)
    for b, (scores, parents, depths, ranks) in enumerate(heap_baseline(log_probs, 64)):
        # Its scores are rounded otherwise, which could only reorder what is as good as equal: here nothing is.
        torch.testing.assert_close(torch.tensor(scores), tree.scores[b], atol=2e-5, rtol=0)
        assert (parents, depths, ranks) == (tree.parents[b].tolist(), tree.depths[b].tolist(), tree.ranks[b].tolist())


def test_a_row_has_times_and_says_that_the_trees_are_equal() -> None:
    row = measure("typical", 2, 16, "cpu", seconds=0.0, compiled=True)
    assert row["equal"] is True
    assert all(row[f"{form}_ms"] > 0 for form in ("heap", "torch", "compiled"))


def test_the_summary_says_which_goals_were_met() -> None:
    def row(kind: str, batch: int) -> dict[str, object]:
        times = {"heap_ms": 20.0, "torch_ms": 8.0, "compiled_ms": 4.0}
        return {"draft": kind, "batch": batch, "nodes": 256, "equal": True, **times}

    said = summary([row("typical", 32), row("flat", 32)], {"device": "cpu"})
    assert said["goals_met"] == {"torch": True, "compiled": False}
    assert said["heap_over_torch_typical"] == 2.5
    assert said["all_equal"] is True
