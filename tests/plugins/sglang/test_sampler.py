"""From hidden states to trees: one rank, and two real ranks of which each has half of the vocabulary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from sgl_ranks import BLOCK, ROWS, SIZES, inputs, trees_of

from ddbench.plugins.sglang import torch_ops as ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees
from ddbench.plugins.sglang.refused import Refused
from ddbench.plugins.sglang.sampler import head_rows


def test_trees_are_those_of_the_drafters_logits() -> None:
    hidden, ids, weight = inputs()
    found = trees_of(hidden, ids, SimpleNamespace(weight=weight), SimpleNamespace(world_size=1))
    expected = Trees(ROWS, SIZES.verify_width, BLOCK, "cpu")
    expected.limit(Caps(SIZES.top_k, BLOCK - 1, SIZES.verify_width - 1))
    logits = hidden.view(ROWS, BLOCK, -1)[:, 1:] @ weight.T
    log_probs, tokens = logits.log_softmax(-1).sort(dim=-1, descending=True, stable=True)
    ops.build(expected, log_probs[..., : SIZES.top_k], tokens[..., : SIZES.top_k], ids.view(ROWS, BLOCK)[:, 0])
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.parents, expected.parents)
    assert (found.depths.max(1).values > 2).all(), "trees that show something"


def test_two_ranks_build_the_same_trees(tmp_path: Path) -> None:
    """Two processes of one gloo group, each with its rows of the head: equal to each other and to one rank's trees.

    Weights are small integers, so that a product is exact however it is split, and equal logits abound.
    """
    root = Path(__file__).resolve().parents[3]
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    script = str(Path(__file__).parent / "sgl_ranks.py")
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for process in ranks:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    hidden, ids, weight = inputs()
    alone = trees_of(hidden, ids, SimpleNamespace(weight=weight), SimpleNamespace(world_size=1))
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["tokens"] == alone.tokens.tolist()
        assert found["parents"] == alone.parents.tolist()


def shard(added: int = 0) -> Any:
    return SimpleNamespace(num_added_elements=added, num_org_elements=30, org_vocab_start_index=96)


def test_rows_of_a_padded_shard() -> None:
    weight = torch.randn(32, 4)
    rows, first = head_rows(SimpleNamespace(weight=weight, shard_indices=shard()), 4)
    assert torch.equal(rows, weight[:30])
    assert first == 96


@pytest.mark.parametrize(
    ("head", "ranks", "says"),
    [
        (None, 1, "without an lm_head"),
        (SimpleNamespace(weight=torch.zeros(4, 4, dtype=torch.int8)), 1, "floating-point"),
        (SimpleNamespace(weight=torch.zeros(4, 4)), 2, "does not say which tokens"),
        (SimpleNamespace(weight=torch.zeros(40, 4), shard_indices=shard(2)), 1, "added to its vocabulary"),
    ],
)
def test_heads_that_are_refused(head: Any, ranks: int, says: str) -> None:
    with pytest.raises(Refused, match=says):
        head_rows(head, ranks)
