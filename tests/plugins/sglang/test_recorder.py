"""What a recording server keeps and writes: candidates beside the trees', files a request, modes, refusals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ddbench.errors import ConfigError
from ddbench.plugins.sglang import torch_ops as ops
from ddbench.plugins.sglang.dumps import FACTS, ROOTS, ROUNDS, Layout, Writer, layout_of, rounds_of
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk
from ddbench.plugins.sglang.options import RECORD, RECORD_NODES, Sizes
from ddbench.plugins.sglang.recorder import Recorder
from ddbench.plugins.sglang.sampler import TreeSampler

SIZES, ROWS, WORDS, HIDDEN = Sizes(6, 4, 3), 3, 31, 8
LENS = torch.tensor([7, 30])


def drafted(recorder: Recorder | None) -> tuple[Trees, torch.Tensor, torch.Tensor]:
    """Trees of two rows of hidden states; and what the sampler was given."""
    torch.manual_seed(3)
    trees = Trees(ROWS, SIZES.verify_width, SIZES.block, "cpu")
    trees.limit(Caps(SIZES.top_k, SIZES.block - 1, SIZES.verify_width - 1))
    hidden, head = torch.randn(2 * SIZES.block, HIDDEN), torch.randn(WORDS, HIDDEN)
    roots = torch.zeros(2, SIZES.block, dtype=torch.int64)
    roots[:, 0] = torch.tensor([11, 12])
    sampler = TreeSampler(ops, trees, SIZES, SimpleNamespace(weight=head), SimpleNamespace(world_size=1), recorder)
    sampler(hidden, roots.view(-1))
    return trees, hidden, head


def asked(folder: Path, nodes: int | None = 9) -> Recorder:
    environment = {RECORD: str(folder)} | ({} if nodes is None else {RECORD_NODES: str(nodes)})
    found = Recorder.of(environment, ROWS, SIZES, "cpu")
    assert found is not None
    return found


def test_more_candidates_are_kept_than_trees_are_built_of(tmp_path: Path) -> None:
    recorder = asked(tmp_path / "made")
    trees, hidden, head = drafted(recorder)
    plain, *_ = drafted(None)
    for name in ("tokens", "parents", "depths", "bits"):
        assert torch.equal(getattr(trees, name), getattr(plain, name)), name
    walk = Walk(ROWS, SIZES.block, "cpu")
    choices = torch.full((2, SIZES.verify_width), 5)
    ops.walk(trees, choices, LENS, walk, recorder.forced(2))
    recorder.write(["a", "b"], LENS, trees, walk)
    assert layout_of(tmp_path / "made") == Layout(SIZES.block - 1, 9)
    expected = (hidden.view(2, SIZES.block, -1)[:, 1:] @ head.T).log_softmax(-1).topk(9)
    for row, name in enumerate("ab"):
        (found,) = rounds_of(tmp_path / "made", name)
        assert (int(found["position"]), int(found["root"]), int(found["taken"])) == (int(LENS[row]), 11 + row, 1)
        np.testing.assert_allclose(found["log_probs"], expected.values[row].numpy(), atol=1e-5)
        assert found["ids"].tolist() == expected.indices[row].tolist()


def test_the_root_alone_is_taken_whatever_was_drafted(tmp_path: Path) -> None:
    recorder = asked(tmp_path)
    trees, *_ = drafted(recorder)
    walk = Walk(ROWS, SIZES.block, "cpu")
    follows = trees.tokens[:2, 1][:, None].expand(-1, SIZES.verify_width)  # the target says what the tree's best is
    ops.walk(trees, follows, LENS, walk)
    assert (walk.commit_lens[:2] > 1).all()
    ops.walk(trees, follows, LENS, walk, recorder.forced(2))
    assert walk.commit_lens[:2].tolist() == [1, 1]
    assert walk.out_tokens[:2, 0].tolist() == walk.bonus[:2].tolist() == follows[:, 0].tolist()
    recorder.set(ROUNDS)
    assert recorder.forced(2) is None


def test_off_writes_nothing_and_unknown_modes_are_refused(tmp_path: Path) -> None:
    recorder = asked(tmp_path)
    assert recorder.mode == ROOTS
    trees, *_ = drafted(recorder)
    recorder.set(0)
    recorder.write(["a"], LENS[:1], trees, Walk(ROWS, SIZES.block, "cpu"))
    assert [path.name for path in tmp_path.iterdir()] == [FACTS]
    assert recorder.forced(1) is None
    with pytest.raises(ConfigError, match="ddtree_record=3"):
        recorder.set(3)


@pytest.mark.parametrize("nodes", [2, 128, 0])
def test_candidates_that_cannot_be(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(ConfigError, match=f"DDTREE_RECORD_NODES={nodes}"):
        asked(tmp_path, nodes)


def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    assert Recorder.of({}, ROWS, SIZES, "cpu") is None
    assert Recorder.of({RECORD: ""}, ROWS, SIZES, "cpu") is None
    assert asked(tmp_path, None).candidates == SIZES.top_k


def test_of_two_rounds_at_a_position_the_later_counts(tmp_path: Path) -> None:
    writer, offer = Writer(tmp_path, Layout(1, 1)), np.zeros((2, 1, 1))
    for root, positions in ((1, (4, 4)), (2, (5, 9)), (3, (4, 8))):
        writer.write(
            ["a", "../b"], position=positions, root=[root] * 2, taken=[1] * 2, log_probs=offer - root, ids=offer
        )
    found = rounds_of(tmp_path, "a")
    assert found["position"].tolist() == [4, 5]
    assert found["root"].tolist() == [3, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.rounds", FACTS], "no other place is written to"
    assert len(rounds_of(tmp_path, "nobody")) == 0
    (tmp_path / FACTS).write_text('{"depth": 1, "candidates": 1, "schema": 7}')
    with pytest.raises(ConfigError, match="schema 7"):
        rounds_of(tmp_path, "a")
    with pytest.raises(ConfigError, match="a folder with"):
        layout_of(tmp_path / "none")
