"""The tree as data: tokens, slices, counts."""

from __future__ import annotations

import pytest
import torch
from trees import draft, paths

from ddbench.errors import ConfigError
from ddbench.tree import build_tree


def test_token_ids_follow_depth_and_rank() -> None:
    log_probs = draft(2, 3, 4, "smooth", 0)
    top_ids = torch.arange(2 * 3 * 4).view(2, 3, 4) + 100
    tree = build_tree(log_probs, 60)
    tokens = tree.token_ids(top_ids)
    for b in range(2):
        found = paths(tree, b)
        assert tokens[b, : len(found)].tolist() == [int(top_ids[b, len(p) - 1, p[-1]]) for p in found]
    padded = build_tree(log_probs, 100)
    assert padded.counts().tolist() == [84, 84]
    assert (padded.token_ids(top_ids)[:, 84:] == -1).all()


def test_token_ids_of_another_batch_are_refused() -> None:
    tree = build_tree(draft(2, 3, 4, "smooth", 0), 8)
    with pytest.raises(ConfigError, match="top_ids"):
        tree.token_ids(torch.zeros(1, 3, 4, dtype=torch.int64))


@pytest.mark.parametrize("nodes", [0, 9])
def test_a_slice_that_was_not_built_is_refused(nodes: int) -> None:
    with pytest.raises(ConfigError, match="nodes"):
        build_tree(draft(1, 3, 4, "smooth", 0), 8).sliced(nodes)
