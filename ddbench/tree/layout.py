"""One target pass over a tree: which row sees which, where each stands, and how children are linked.

A tree of n nodes takes n + 1 rows: row 0 is the root, row i + 1 is node i. Padding keeps its row, sees nothing but
itself and is linked to nothing. `pack` lays trees of unequal size one after another, without padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ddbench.errors import ConfigError
from ddbench.tree.shape import PADDING


def row_parents(parents: Tensor) -> Tensor:
    """Parent row of every row, ``[batch, nodes + 1]``: -1 for the root and for padding.

    Args:
        parents: ``[batch, nodes]``, as in `ddbench.tree.Tree`.
    """
    _check(parents, "parents")
    rows = torch.where(parents == PADDING, -1, parents + 1)
    return F.pad(rows, (1, 0), value=-1)


def ancestor_mask(parents: Tensor, max_depth: int | None = None) -> Tensor:
    """Which rows a row attends to within the tree: bool ``[batch, nodes + 1, nodes + 1]``, its ancestors and itself.

    Args:
        parents: ``[batch, nodes]``, as in `ddbench.tree.Tree`.
        max_depth: a bound on the trees' depth, saves work; None for no bound but the number of nodes.
    """
    above = row_parents(parents)
    batch, rows = above.shape
    own = torch.arange(rows, device=parents.device)
    above = torch.where(above < 0, own, above)
    mask = torch.eye(rows, dtype=torch.bool, device=parents.device).expand(batch, rows, rows)
    # Pointer doubling: after round r a row sees the 2 ** r rows from itself upwards.
    for _ in range(doubling_rounds(rows - 1, max_depth)):
        mask = mask | mask.gather(1, above[:, :, None].expand(batch, rows, rows))
        above = above.gather(1, above)
    return mask.contiguous()


def doubling_rounds(nodes: int, max_depth: int | None) -> int:
    """Rounds of pointer doubling that reach the root from any node: the root is at most ``max_depth`` steps away."""
    if max_depth is not None and max_depth < 1:
        raise ConfigError("max_depth", max_depth, "at least 1, or None for no bound")
    return (nodes if max_depth is None else min(nodes, max_depth)).bit_length()


def position_ids(depths: Tensor, start: Tensor) -> Tensor:
    """Absolute position of every row, ``[batch, nodes + 1]``: siblings share one. Padding stands at the root's.

    Args:
        depths: ``[batch, nodes]``, as in `ddbench.tree.Tree`.
        start: ``[batch]``, position of the root (the bonus token), which is also the length of the committed context.
    """
    _check(depths, "depths")
    if start.shape != depths.shape[:1]:
        raise ConfigError("start.shape", tuple(start.shape), f"[batch], here ({depths.shape[0]},)")
    return start[:, None] + F.pad(depths, (1, 0))


def child_links(parents: Tensor) -> tuple[Tensor, Tensor]:
    """First child and next sibling of every row, each ``[batch, nodes + 1]``, -1 where there is none.

    Siblings are linked in the order of the nodes, which in a tree of `build_tree` is the order of their ranks.
    """
    above = row_parents(parents)
    batch, rows = above.shape
    own = torch.arange(rows, device=parents.device).expand(batch, rows)
    order = above.argsort(dim=1, stable=True)  # rows of one parent side by side, in the order of the nodes
    parent = above.gather(1, order)
    same = (parent[:, 1:] == parent[:, :-1]) & (parent[:, 1:] >= 0)
    following = torch.where(same, order[:, 1:], -1)
    next_sibling = torch.full_like(above, -1).scatter_(1, order[:, :-1], following)
    slot = torch.where(above < 0, rows, above)
    first = torch.full((batch, rows + 1), rows, device=parents.device).scatter_reduce_(1, slot, own, "amin")[:, :rows]
    return torch.where(first == rows, -1, first), next_sibling


@dataclass(frozen=True)
class RaggedLayout:
    """Trees of unequal size in one flat sequence of rows, each tree's root first, then its nodes in their order.

    Attributes:
        source: ``[rows]``, index into the flattened padded layout ``[batch, nodes + 1]``: ``padded.flatten()[source]``.
        sequence: ``[rows]``, which tree a row belongs to.
        parents: ``[rows]``, flat index of the parent row, -1 for a root.
        position_ids: ``[rows]``, absolute positions.
        first_child, next_sibling: ``[rows]``, flat indices, -1 for none.
        cu_seqlens: int32 ``[batch + 1]``, where each tree's rows begin; the last is the number of rows.
    """

    source: Tensor
    sequence: Tensor
    parents: Tensor
    position_ids: Tensor
    first_child: Tensor
    next_sibling: Tensor
    cu_seqlens: Tensor

    def mask(self) -> Tensor:
        """bool ``[rows, rows]``: a row sees its ancestors and itself, and nothing of other trees."""
        rows = self.parents.shape[0]
        # The whole forest is one tree under one more root; its row and column are dropped again.
        return ancestor_mask(self.parents[None])[0, 1:, 1:] if rows else self.parents.new_zeros(0, 0, dtype=torch.bool)

    def flat_mask(self, context_lengths: Tensor | None = None) -> Tensor:
        """One bool vector: tree after tree, row after row, what each row sees of its context (all) and of its tree.

        Its length is ``sum(rows_i * (context_i + rows_i))``, the form that FlashInfer and SGLang call a custom mask.

        Args:
            context_lengths: ``[batch]`` rows already in the KV cache; None for the tree part alone.
        """
        mask, bounds = self.mask(), self.cu_seqlens.tolist()
        context = [0] * (len(bounds) - 1) if context_lengths is None else context_lengths.tolist()
        parts = [
            F.pad(mask[begin:end, begin:end], (past, 0), value=True).flatten()
            for begin, end, past in zip(bounds[:-1], bounds[1:], context, strict=True)
        ]
        return torch.cat(parts)


def pack(parents: Tensor, depths: Tensor, start: Tensor) -> RaggedLayout:
    """Lays out a batch of trees without its padding. How many rows that makes must be read from the device.

    Args:
        parents, depths: ``[batch, nodes]``, as in `ddbench.tree.Tree`.
        start: ``[batch]``, position of each root.
    """
    above = row_parents(parents)
    batch, rows = above.shape
    kept = F.pad(parents != PADDING, (1, 0), value=True)
    flat = (kept.flatten().cumsum(0) - 1).view(batch, rows)  # flat index of each kept row
    source = kept.flatten().nonzero()[:, 0]
    first_child, next_sibling = child_links(parents)

    def kept_links(links: Tensor) -> Tensor:
        moved = torch.where(links < 0, -1, flat.gather(1, links.clamp(min=0)))
        return moved.flatten()[source]

    return RaggedLayout(
        source=source,
        sequence=source // rows,
        parents=kept_links(above),
        position_ids=position_ids(depths, start).flatten()[source],
        first_child=kept_links(first_child),
        next_sibling=kept_links(next_sibling),
        cu_seqlens=F.pad(kept.sum(1).cumsum(0), (1, 0)).to(torch.int32),
    )


def _check(part: Tensor, name: str) -> None:
    if part.dim() != 2:
        raise ConfigError(f"{name}.shape", tuple(part.shape), "[batch, nodes]")
