"""Step 3 of the build: the nodes whose score equals the threshold T, counted and enumerated by rank tuple.

Every node at T is either the child of a *member* (a node already in the tree: above T, on the forced spine, or the
root) or the child of another node at T. Below a node at T, the children at T are the candidates whose log-probability
the sum absorbs: how many they are depends on the depth alone. So all subtrees of ties that hang from one depth look
the same, their sizes are a recurrence over depth, and the j-th tie of a tree is found by division.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from ddbench.tree.build import Members


@dataclass(frozen=True)
class Ties:
    """The first ties of each tree by rank tuple, ``[batch, slots]``, as many as fit into any tree of the batch.

    ``counts``, ``[batch, 1]``: how many there are.
    """

    parents: Tensor  # places in the finished tree
    depths: Tensor
    ranks: Tensor
    counts: Tensor


def find_ties(
    lp: Tensor,
    threshold: Tensor,
    members: Members,
    children: Tensor,
    heads: Tensor,
    positions: Tensor,
    postorder: Tensor,
    nodes: int,
    look: bool,
) -> Ties:
    """The ties that fill up each tree of ``nodes`` nodes. They stand in it after its members.

    Args:
        lp: ``[batch, levels, width]`` log-probabilities, sorted.
        threshold: ``[batch, 1]``, T.
        members: the nodes that are in the tree already.
        children, heads: ``[batch, members]``, from `count_heads`.
        positions: ``[batch, members]``, places of the members in the finished tree.
        postorder: ``[batch, members]``, a permutation of them. A member's ties come after the subtrees of its children
            that are members, so this is the order of the members' ties.
        look: whether values may be looked at to leave out work.
    """
    batch, levels, _ = lp.shape
    sizes = _subtree_sizes(lp, threshold, nodes, look)
    below = (members.depths + 1).clamp(max=levels)
    weights = (heads * sizes.gather(1, below)).gather(1, postorder)

    ends = weights.cumsum(1)
    taken = members.spine_nodes + members.above_nodes
    slots = nodes
    if look:  # mostly there is room for one, the last node
        slots = max(1, int(torch.minimum(nodes - taken, ends[:, -1:]).amax()))
    slot = torch.arange(slots, device=lp.device).expand(batch, slots).contiguous()
    block = torch.searchsorted(ends, slot, right=True).clamp(max=ends.shape[1] - 1)
    left = slot - (ends - weights).gather(1, block)  # ties before this one under the same member
    member = postorder.gather(1, block)

    depth = below.gather(1, member)
    size = sizes.gather(1, depth)
    rank = children.gather(1, member) + left // size
    parent = positions.gather(1, member)
    left = left % size
    place = slot + taken
    for _ in range(levels - 1):
        if look and not bool(left.any()):
            break
        # ``left`` counts the ties before this one in the subtree of a tie: 0 is that tie itself.
        deeper = left > 0
        parent = torch.where(deeper, place - left, parent)
        depth = (depth + deeper).clamp(max=levels)
        size = sizes.gather(1, depth)
        rank = torch.where(deeper, (left - 1) // size, rank)
        left = torch.where(deeper, (left - 1) % size, 0)
    return Ties(parents=parent, depths=depth, ranks=rank, counts=ends[:, -1:])


def _subtree_sizes(lp: Tensor, threshold: Tensor, nodes: int, look: bool) -> Tensor:
    """Ties in the subtree of a tie at depth 0, 1, ... levels, itself included: int64 ``[batch, levels + 1]``.

    size[d] = 1 + absorbed[d] * size[d + 1] = 1 + absorbed[d] + absorbed[d] * absorbed[d + 1] + ..., with
    ``absorbed[d]`` the candidates of position d (those of depth d + 1) that leave the sum at T. Capped just above
    ``nodes``.
    """
    levels = lp.shape[1]
    if look and not bool((threshold + lp[:, :, 0] >= threshold).any()):
        return torch.ones(lp.shape[0], levels + 1, dtype=torch.int64, device=lp.device)
    absorbed = ((threshold[:, :, None] + lp) >= threshold[:, :, None]).sum(2)
    grid = torch.ones(levels, levels, dtype=torch.bool, device=lp.device).triu()  # [from depth, at depth]
    products = torch.where(grid, absorbed[:, None, :].to(torch.float64), 1.0).cumprod(2)
    sizes = 1 + torch.where(grid, products, 0.0).sum(2)
    return F.pad(sizes.clamp(max=nodes + 1).to(torch.int64), (0, 1), value=1)


def count_heads(lp: Tensor, threshold: Tensor, members: Members, look: bool) -> tuple[Tensor, Tensor]:
    """Children of each member that are members, and children that are ties: each ``[batch, members]``.

    The former have the first ranks, the latter the next ones.
    """
    children = torch.zeros_like(members.parents)
    children.scatter_add_(1, members.parents[:, 1:], members.valid[:, 1:].to(torch.int64))
    batch, levels, width = lp.shape
    inner = members.valid & (members.depths < levels)
    scores, bound = members.scores, threshold.expand_as(members.scores)
    row = members.depths.clamp(max=levels - 1) + levels * torch.arange(batch, device=lp.device)[:, None]
    if not look:
        reached = _search(lp.flatten(0, 1), row.flatten(), scores.flatten(), bound.flatten()).view(row.shape)
        return children, (reached - children).clamp(min=0) * inner
    # Few members have ties at all, as their next child tells.
    following = lp.flatten()[row * width + children.clamp(max=width - 1)]
    some = inner & (children < width) & (scores + following >= bound)
    sums = scores[some][:, None] + lp.flatten(0, 1)[row[some]]
    heads = torch.zeros_like(children)
    heads[some] = (sums >= bound[some][:, None]).sum(1) - children[some]
    return children, heads


def _search(table: Tensor, row: Tensor, scores: Tensor, bound: Tensor) -> Tensor:
    """How many candidates of ``table[row]`` keep ``scores + candidate >= bound``; row, scores, bound: ``[n]``.

    The sums are the tree's own float32 sums, and rounding is monotone: an exact search, in steps of powers of 4.
    """
    width = table.shape[1]
    steps = [4**n for n in range(16) if 4**n <= width][::-1]
    probes = [-(-width // steps[0])] + [3] * (len(steps) - 1)
    reach = sum(step * count for step, count in zip(steps, probes, strict=True))
    flat = F.pad(table, (0, reach - width), value=-torch.inf).flatten()
    found = torch.zeros_like(row)
    for step, count in zip(steps, probes, strict=True):
        ahead = step * torch.arange(1, count + 1, device=table.device) - 1
        sums = scores[:, None] + flat[(row * reach + found)[:, None] + ahead]
        found = found + step * (sums >= bound[:, None]).sum(1)
    return found
