"""Batches of random trees for the tests of a round's steps, and what follows from them by definition."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "tree"))

from trees import KINDS, draft

from ddbench.plugins.sglang import torch_ops
from ddbench.plugins.sglang.kernels.buffers import Caps, Trees, Walk

__all__ = ["KINDS", "TABLES", "WALKED", "Case", "case_of", "copy_of", "copy_walk", "draft", "same", "walked"]

VOCABULARY = 50
TABLES = ("tokens", "parents", "depths", "bits")
LINKS = ("first_child", "next_sibling")
WALKED = ("path", "commit_lens", "bonus", "out_tokens", "new_seq_lens")


@dataclass
class Case:
    """Trees of a batch in buffers that are two rows larger, the drafts they were built from, and committed lengths."""

    trees: Trees
    log_probs: Tensor
    ids: Tensor
    roots: Tensor
    seq_lens: Tensor
    generator: torch.Generator

    @property
    def rows(self) -> int:
        return int(self.roots.shape[0])

    def positions(self) -> Tensor:
        return torch.full((self.rows, self.trees.verify_width), -7)

    def slots(self, buffers: int) -> Tensor:
        """Slots of the windows, all different, below ``buffers``."""
        count = self.rows * self.trees.verify_width
        return torch.randperm(buffers, generator=self.generator)[:count].view(self.rows, -1)

    def choices(self) -> Tensor:
        """The target's choices, mostly along some path of each tree."""
        trees, generator = self.trees, self.generator
        chosen = torch.randint(0, VOCABULARY, (self.rows, trees.verify_width), generator=generator)
        for row in range(self.rows):
            for node in torch.randperm(trees.verify_width, generator=generator).tolist():
                parent = int(trees.parents[row, node])
                if parent >= 0 and torch.rand(1, generator=generator) < 0.9:
                    chosen[row, parent] = trees.tokens[row, node]
        return chosen


def case_of(
    verify_width: int,
    seed: int,
    rows: int = 3,
    kind: str = "smooth",
    block: int = 8,
    k: int = 12,
    caps: Caps | None = None,
    most: int = 60,
) -> Case:
    """Random drafts and their trees; lengths from 1 to ``most``."""
    generator = torch.Generator().manual_seed(seed)
    trees = Trees(rows + 2, verify_width, block, "cpu")
    if caps is not None:
        trees.limit(caps)
    k = min(k, verify_width - 1)
    order = torch.stack([torch.randperm(VOCABULARY, generator=generator)[:k] for _ in range(rows * (block - 1))])
    case = Case(
        trees=trees,
        log_probs=draft(rows, block - 1, k, kind, seed),
        ids=order.view(rows, block - 1, k).to(torch.int32),
        roots=torch.randint(0, VOCABULARY, (rows,), generator=generator),
        seq_lens=torch.randint(1, most + 1, (rows,), generator=generator),
        generator=generator,
    )
    torch_ops.build(trees, case.log_probs, case.ids, case.roots)
    return case


def copy_of(trees: Trees, device: str = "cpu") -> Trees:
    other = Trees(trees.rows, trees.verify_width, trees.block, device)
    for name in (*TABLES, *LINKS, "caps"):
        getattr(other, name).copy_(getattr(trees, name))
    return other


def copy_walk(walk: Walk, device: str) -> Walk:
    other = Walk(*walk.path.shape, device)
    for name in WALKED:
        getattr(other, name).copy_(getattr(walk, name))
    return other


def same(found: object, expected: object, names: tuple[str, ...] = TABLES, note: object = "") -> None:
    for name in names:
        one, other = getattr(found, name).cpu(), getattr(expected, name).cpu()
        assert one.dtype == other.dtype
        assert torch.equal(one, other), f"{name} {note}\n{one}\n{other}"


def walked(case: Case) -> Walk:
    """The walk of the torch twin along `Case.choices`."""
    out = Walk(case.trees.rows, case.trees.block, "cpu")
    torch_ops.walk(case.trees, case.choices(), case.seq_lens, out)
    return out
