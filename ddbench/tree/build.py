"""The batched build: the exact best-first tree in torch, level by level, without a word to the host.

1. `levels.py`: the best scores of every level, and with them T, the score of the B-th best node of all.
2. The nodes above T are then known, fewer than B (`_members`). Equal scores among them go by rank tuple: `order.py`.
3. The nodes at T, of which the lexicographically smallest fill the tree, can be more than anyone would list:
   log-probabilities of 0, or so small that the sum absorbs them, make whole subtrees of equal score. They are counted,
   not searched: `ties.py`.

On a GPU it is a fixed sequence of tensor operations on shapes known beforehand, so that a CUDA graph can capture it.
On a CPU, where looking at a value costs nothing, needless work is left out; the tree is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddbench.errors import ConfigError
from ddbench.tree.levels import LOWEST, Levels, grow_levels
from ddbench.tree.order import RankCode, sort_keys
from ddbench.tree.select import ascending, descending
from ddbench.tree.shape import PADDING, ROOT, Limits, Tree
from ddbench.tree.ties import Ties, count_heads, find_ties

MOST_NODES = 2**15 - 1  # a slot and a rank share 31 bits


def build_tree(
    log_probs: Tensor,
    nodes: int,
    width: int | None = None,
    depth: int | None = None,
    min_log_prob: float | None = None,
    force_spine: bool = False,
) -> Tree:
    """The ``nodes`` most probable prefixes of a block drafter's proposal (DDTree paper, propositions 2 and 3).

    Exact, for a batch at once, on the device of ``log_probs``; on a GPU without host synchronisation. Best first; equal
    float32 sums by the lexicographically smaller rank tuple. Budgets are nested: `Tree.sliced` gives the smaller trees.

    Args:
        log_probs: ``[batch, depth, k]`` natural-log probabilities of the drafter's k best candidates at each position,
            sorted from the best down; ``-inf`` is ruled out. Any k will do; beyond the ``nodes``-th none is looked at.
        nodes: most nodes in a tree, the root not counted; up to 32767.
        width: most children of a node; None for no limit.
        depth: most nodes on a path; None for all drafted positions.
        min_log_prob: least cumulative log-probability of a node; None for no limit.
        force_spine: put the drafter's own chain, rank 0 at every depth, first into the tree whatever its probability
            (``min_log_prob`` does not bind it), then fill up best first. Needs ``nodes >= depth``.

    Raises:
        ConfigError: a limit or a shape that cannot be; on a CPU also NaN or unsorted ``log_probs`` (`Limits.prepare`).
    """
    limits = Limits.of(log_probs, nodes, width, depth, min_log_prob, force_spine)
    if nodes > MOST_NODES:
        raise ConfigError("nodes", nodes, f"at most {MOST_NODES}; build_tree_heap and build_tree_compiled take more")
    return build_prepared(limits.prepare(log_probs), limits, look=log_probs.is_cpu)


def build_prepared(lp: Tensor, limits: Limits, look: bool) -> Tree:
    """`build_tree` of checked input. Without ``look`` it is the fixed sequence of operations, on a CPU too."""
    nodes = limits.nodes
    lp = lp[:, :nodes]  # a budget of B reaches no deeper than B
    RankCode.check(nodes, lp.shape[1])
    levels = grow_levels(lp, limits, look)
    members = _members(levels, nodes)
    children, heads = count_heads(lp, levels.threshold, members, look)
    order, postorder = _orders(members, heads, nodes, look)
    positions = _positions(order, members)
    ties = find_ties(lp, levels.threshold, members, children, heads, positions, postorder, nodes, look)
    return _assemble(members, order, positions, ties, levels.threshold)


@dataclass(frozen=True)
class Members:
    """Root, forced spine, and the nodes above T level by level: ``[batch, 1 + spine + nodes]``.

    ``parents`` index into the members; the root is its own. ``spine_nodes`` and ``above_nodes``, ``[batch, 1]``, count.
    """

    scores: Tensor
    parents: Tensor
    depths: Tensor
    ranks: Tensor
    valid: Tensor
    spine_nodes: Tensor
    above_nodes: Tensor
    max_depth: int


def _members(levels: Levels, nodes: int) -> Members:
    batch, depth, slots = levels.scores.shape
    device, first, spine = levels.scores.device, levels.first, levels.spine
    # Slots descend by score: those above T are the first ones of each level.
    above = (levels.scores[:, :, first:] > levels.threshold[:, :, None]).sum(2)
    ends = above.cumsum(1)
    starts = ends - above
    index = torch.arange(nodes, device=device).expand(batch, nodes).contiguous()
    valid = index < ends[:, -1:]
    level = torch.searchsorted(ends, index, right=True).clamp(max=depth - 1)
    slot = index - starts.gather(1, level) + first
    source = (level * slots + slot).clamp(max=depth * slots - 1)
    # The parent of a node above T is above T: the n-th slot of its level is the n-th member of that level.
    origin = levels.origins.flatten(1).gather(1, source).to(torch.int64)
    parent_slot = origin >> levels.shift
    parents = starts.gather(1, (level - 1).clamp(min=0)) + parent_slot + (1 + spine.shape[1] - first)
    parents = torch.where(parent_slot < first, level, parents)  # spine nodes are members 1, 2, ... by depth
    parents = torch.where(valid & (level > 0), parents, 0)
    ranks = torch.where(valid, origin & ((1 << levels.shift) - 1), 0)
    scores = levels.scores.flatten(1).gather(1, source).masked_fill(~valid, -math.inf)

    chain = torch.arange(spine.shape[1] + 1, device=device).expand(batch, -1)  # root and spine, by depth
    on_spine = spine >= LOWEST
    return Members(
        scores=torch.cat([scores.new_zeros(batch, 1), spine, scores], dim=1),
        parents=torch.cat([(chain - 1).clamp(min=0), parents], dim=1),
        depths=torch.cat([chain, torch.where(valid, level + 1, 0)], dim=1),
        ranks=torch.cat([torch.zeros_like(chain), ranks], dim=1),
        valid=torch.cat([on_spine.new_ones(batch, 1), on_spine, valid], dim=1),
        spine_nodes=on_spine.sum(1, keepdim=True),
        above_nodes=ends[:, -1:],
        max_depth=depth,
    )


def _orders(members: Members, heads: Tensor, nodes: int, look: bool) -> tuple[Tensor, Tensor]:
    """Two permutations: ``[batch, nodes]``, the nodes above T best first, equal scores by rank tuple; and ``[batch,
    members]``, a postorder of the members, in which those with ``heads``, ties for children, stand right.
    """
    scores = members.scores[:, -nodes:]
    if look:
        order = descending(scores)
        sorted_scores = scores.gather(1, order)
        equal = (sorted_scores[:, 1:] == sorted_scores[:, :-1]) & (sorted_scores[:, 1:] > -math.inf)
        if not bool(equal.any()) and int((heads > 0).sum(1).amax()) <= 1:  # no rank tuple decides anything
            return order, torch.arange(heads.shape[1]).expand_as(heads)
    code = RankCode.of(nodes, members.max_depth, nodes, scores.device)
    preorder_keys, postorder_keys = sort_keys(members.parents, members.ranks, members.depths, members.valid, code)
    by_rank = ascending(preorder_keys[:, -nodes:])
    return by_rank.gather(1, descending(scores.gather(1, by_rank))), ascending(postorder_keys)


def _positions(order: Tensor, members: Members) -> Tensor:
    """Place of every member in the finished tree, ``[batch, members]``; the root's is -1."""
    batch, nodes = order.shape
    index = torch.arange(nodes, device=order.device).expand_as(order)
    places = torch.empty_like(order).scatter_(1, order, index) + members.spine_nodes
    chain = torch.arange(ROOT, members.scores.shape[1] - nodes - 1, device=order.device).expand(batch, -1)
    return torch.cat([chain, places], dim=1)


def _assemble(members: Members, order: Tensor, positions: Tensor, ties: Ties, threshold: Tensor) -> Tree:
    """The finished tree: the spine's nodes, the nodes above T best first, the ties; then padding."""
    batch, nodes = order.shape
    spine = members.scores.shape[1] - 1 - nodes
    taken = members.spine_nodes + members.above_nodes
    place = torch.arange(nodes, device=order.device).expand(batch, nodes)
    # What there is stands one after another, [spine | above T | ties]; the first two are members.
    member = torch.cat([torch.arange(1, spine + 1, device=order.device).expand(batch, -1), order + 1 + spine], dim=1)
    source = torch.where(place < members.spine_nodes, place, spine + place - members.spine_nodes)
    source = torch.where(place < taken, source, spine + nodes + place - taken)
    source = source.clamp(max=spine + nodes + ties.ranks.shape[1] - 1)
    valid = place < taken + ties.counts

    def pick(of_members: Tensor, of_ties: Tensor, padding: float) -> Tensor:
        pool = torch.cat([of_members.gather(1, member), of_ties], dim=1)
        return torch.where(valid, pool.gather(1, source), padding)

    return Tree(
        scores=pick(members.scores, threshold.expand_as(ties.ranks), -math.inf) + 0.0,  # no negative zero
        parents=pick(positions.gather(1, members.parents), ties.parents, PADDING),
        depths=pick(members.depths, ties.depths, 0),
        ranks=pick(members.ranks, ties.ranks, -1),
    )
