"""Step 1 of the build: the best scores of every level of the tree, and where each came from.

A prefix is never less probable than its extension. So the best B nodes of a level are found among the best B of the
level above, extended; and of those only the pairs (i-th best parent, k-th candidate) that fewer than B nodes are sure
to beat. Ties may put a node into another's slot, but they change no value, and whatever is above the score T of the
B-th best node of all keeps its own slot, since all that are sure to beat it are above T too.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ddbench.tree.select import best_scores, best_sums, kth_best
from ddbench.tree.shape import Limits

LOWEST = torch.finfo(torch.float32).min  # the least score that is a number


@dataclass(frozen=True)
class Levels:
    """Slots of a level descend by score; slot 0 is the spine, rank 0 all along, which nothing of its level beats.

    Attributes:
        scores: ``[batch, levels, slots]``; ``-inf`` where there is nothing worth a slot.
        origins: int32 ``[batch, levels, slots]``, the slot of the parent one level up (0 in the first level) and the
            rank, as ``parent << shift | rank``.
        threshold: ``[batch, 1]``, T: no node of the tree is below it, fewer than B are above it.
        spine: ``[batch, levels]`` scores of the forced spine, or ``[batch, 0]``.
    """

    scores: Tensor
    origins: Tensor
    shift: int
    threshold: Tensor
    spine: Tensor

    @property
    def first(self) -> int:
        """The first slot that competes for the budget: a forced spine does not."""
        return int(self.spine.shape[1] > 0)

    def replaced(self, rows: Tensor, wider: Levels) -> Levels:
        """With other levels, not narrower, for some of the rows; as wide as those use (looks at values)."""
        used = int((wider.scores > wider.threshold[:, :, None]).sum(2).amax()) + 1
        slots = max(self.scores.shape[2], min(used, wider.scores.shape[2]))

        def merged(mine: Tensor, theirs: Tensor, padding: float) -> Tensor:
            padded = F.pad(mine, (0, slots - mine.shape[2]), value=padding)
            padded[rows] = theirs[:, :, :slots]
            return padded

        return Levels(
            scores=merged(self.scores, wider.scores, -math.inf),
            origins=merged(self.origins, wider.origins, 0),
            shift=self.shift,
            threshold=self.threshold.index_copy(0, rows, wider.threshold),
            spine=self.spine,
        )


def grow_levels(lp: Tensor, limits: Limits, look: bool) -> Levels:
    """Levels for prepared log-probabilities ``[batch, levels, width]``, no more levels than nodes.

    ``look`` says that values may be looked at (on a CPU) to leave out work; the tree is the same.
    """
    if not look or limits.nodes < 16:
        return _grow(lp, limits, limits.nodes, None)
    # A level seldom holds more than a part of the tree, and narrow levels cost less. They are tried first; the trees
    # they are too narrow for are grown again, with the nodes found as a bound.
    narrow = _grow(lp, limits, 3 * limits.nodes // 8, None)
    failed = (narrow.scores[:, :, -1] > narrow.threshold).any(1).nonzero()[:, 0]
    if failed.shape[0] == 0:
        return narrow
    wide = _grow(lp[failed], limits, limits.nodes, narrow.threshold[failed])
    return wide if failed.shape[0] == lp.shape[0] else narrow.replaced(failed, wide)


def _grow(lp: Tensor, limits: Limits, slots: int, bound: Tensor | None) -> Levels:
    """Levels of ``slots`` slots. With a ``bound``, ``[batch, 1]``, it looks at values to leave out those below."""
    batch, levels, width = lp.shape
    pairs = _pairs(lp.device, limits.nodes, width, slots)
    scores = lp.new_full((batch, levels, slots), -math.inf)
    origins = torch.zeros(scores.shape, dtype=torch.int32, device=lp.device)
    scores[:, 0, :width] = lp[:, 0, :slots]
    origins[:, 0] = torch.arange(slots, device=lp.device)
    for d in range(1, levels):
        above, steps = scores[:, d - 1], lp[:, d]
        scores[:, d, 0] = above[:, 0] + steps[:, 0]
        chosen = pairs if bound is None else _within(pairs, above, steps, bound)
        if kept := min(chosen.parents.shape[0], slots - 1):
            scores[:, d, 1 : kept + 1], origins[:, d, 1 : kept + 1] = best_sums(
                above, steps, chosen.parents, chosen.ranks, chosen.labels, kept
            )
    threshold = _threshold(scores, limits)
    return Levels(
        scores=scores,
        origins=origins,
        shift=width.bit_length(),
        threshold=threshold if bound is None else torch.maximum(threshold, bound),
        spine=scores[:, :, 0] if limits.force_spine else scores[:, :0, 0],
    )


def _threshold(scores: Tensor, limits: Limits) -> Tensor:
    """T, ``[batch, 1]``: the score of the last node within the budget, and no less than the floor."""
    nodes = limits.nodes
    competing = scores[:, :, int(limits.force_spine) :].flatten(1)
    competing = F.pad(competing, (0, max(0, nodes - competing.shape[1])), value=-math.inf)
    if limits.force_spine:
        spine_nodes = (scores[:, :, 0] >= LOWEST).sum(1, keepdim=True)
        ordered = F.pad(best_scores(competing, nodes), (1, 0), value=math.inf)
        last = ordered.gather(1, nodes - spine_nodes)
    else:
        last = kth_best(competing, nodes)
    return last.clamp(min=max(LOWEST, limits.floor))


@dataclass(frozen=True)
class _Pairs:
    """Candidates of a level: slot of the level above, and rank. By slot, then by rank, without the spine's (0, 0)."""

    parents: Tensor
    ranks: Tensor
    labels: Tensor  # int32, as the origins of `Levels`


def _pairs(device: torch.device, nodes: int, width: int, slots: int) -> _Pairs:
    if device.type != "cuda":
        return _cached_pairs(device, nodes, width, slots, 0)
    if torch.cuda.is_current_stream_capturing():
        return _make_pairs(device, nodes, width, slots)  # memory of the graph's own pool, not ours to keep
    return _cached_pairs(device, nodes, width, slots, torch.cuda.current_stream(device).cuda_stream)


@functools.lru_cache(maxsize=64)
def _cached_pairs(device: torch.device, nodes: int, width: int, slots: int, stream: int) -> _Pairs:
    # One copy for each stream: another might read what this one has yet to write.
    with torch.inference_mode(False):  # they outlive the mode they happen to be made in
        return _make_pairs(device, nodes, width, slots)


def _make_pairs(device: torch.device, nodes: int, width: int, slots: int) -> _Pairs:
    # Pair (i, k) is beaten by the (i + 1)(k + 1) - 1 other pairs no larger in both: not needed beyond the level's
    # slots. It is also beaten by the i + 1 parents no worse than its own: not needed if (i + 1)(k + 2) > nodes.
    counts = [min(width, slots // place, nodes // place - 1) for place in range(1, slots + 1)]
    counts = counts[: sum(count > 0 for count in counts)]
    # Made on the device, by arithmetic: copying from the host would be a synchronisation.
    place = torch.arange(1, len(counts) + 1, device=device)
    ends = torch.minimum(slots // place, nodes // place - 1).clamp(max=width).cumsum(0)
    flat = torch.arange(1, max(sum(counts), 1), device=device)
    parents = torch.searchsorted(ends, flat, right=True)
    ranks = flat - F.pad(ends, (1, 0))[parents]
    return _Pairs(parents=parents, ranks=ranks, labels=((parents << width.bit_length()) | ranks).to(torch.int32))


def _within(pairs: _Pairs, above: Tensor, steps: Tensor, bound: Tensor) -> _Pairs:
    """The pairs that can give a score over the bound in any tree of the batch (looks at values)."""
    parents, ranks = pairs.parents.numpy(), pairs.ranks.numpy()
    end = np.searchsorted(parents, int((above > bound).sum(1).amax()))
    reached = int(((above[:, :1] + steps) > bound).sum(1).amax())
    kept = torch.from_numpy(np.flatnonzero(ranks[:end] < reached))
    return _Pairs(pairs.parents[kept], pairs.ranks[kept], pairs.labels[kept])
