"""Which drafted nodes the target keeps: the greedy walk, and its form at temperature > 0.

At every row the target chooses a token of its own, the argmax or an independent draw; the walk follows the tree as
long as the chosen token is among a node's children, and the first choice that is not becomes the bonus token. Every
emitted token is thus the target's choice at its true prefix, whatever the drafter proposed: lossless, and at
temperature > 0 exact in distribution (SpecInfer's "naive sampling", which DDTree uses too). The other known rule,
accept with min(1, p/q) and else draw from the residual, is for candidates drawn from q; for those of a top-k tree,
put there with certainty, it is biased, as the tests show.

No loop over nodes, no host synchronisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ddbench.errors import ConfigError
from ddbench.tree.layout import doubling_rounds, row_parents
from ddbench.tree.sampling import Setting, draw, filtered_probs


@dataclass(frozen=True)
class Walk:
    """What one verification kept.

    Attributes:
        indices: ``[batch, depth + 1]`` rows of the accepted path, the root's 0 first, padded with -1.
        accepted: ``[batch]`` drafted nodes kept, the root not counted: a round emits ``accepted + 1`` tokens.
        bonus: ``[batch]`` the target's token after the path, next round's root.
    """

    indices: Tensor
    accepted: Tensor
    bonus: Tensor


def walk(parents: Tensor, token_ids: Tensor, chosen: Tensor, max_depth: int | None = None) -> Walk:
    """Follows the target's choices down the tree.

    Args:
        parents: ``[batch, nodes]``, as in `ddbench.tree.Tree`.
        token_ids: ``[batch, nodes]`` drafted tokens; of equal siblings the first counts. Padding is never followed.
        chosen: ``[batch, nodes + 1]`` the target's token after every row, row 0 the root's.
        max_depth: a bound on the trees' depth, saves work and makes ``indices`` narrower; None: the number of nodes.

    Raises:
        ConfigError: shapes that do not belong together.
    """
    batch, nodes = parents.shape
    if token_ids.shape != parents.shape or chosen.shape != (batch, nodes + 1):
        found = (tuple(parents.shape), tuple(token_ids.shape), tuple(chosen.shape))
        raise ConfigError("parents, token_ids, chosen", found, "[batch, nodes], the same, [batch, nodes + 1]")
    above = row_parents(parents)
    rows = nodes + 1
    own = torch.arange(rows, device=parents.device).expand(batch, rows)
    above_or_root = above.clamp(min=0)
    tokens = F.pad(token_ids, (1, 0), value=-1)
    matches = (above >= 0) & (tokens == chosen.gather(1, above_or_root))
    # Of equal siblings only the first is followed.
    slot = torch.where(matches, above, rows)
    first = torch.full((batch, rows + 1), rows, device=parents.device).scatter_reduce_(1, slot, own, "amin")
    kept = matches & (first.gather(1, above_or_root) == own)
    kept[:, 0] = True

    # Pointer doubling: a row is on the path if all from it up to the root are kept; its depth is the steps to get
    # there.
    depth = (above >= 0).to(torch.int64)
    jump = torch.where(above >= 0, above, own)
    for _ in range(doubling_rounds(nodes, max_depth)):
        kept = kept & kept.gather(1, jump)
        depth = depth + depth.gather(1, jump)
        jump = jump.gather(1, jump)

    columns = 1 + (nodes if max_depth is None else min(nodes, max_depth))
    column = torch.where(kept, depth, columns).clamp(max=columns)
    indices = torch.full((batch, columns + 1), -1, device=parents.device).scatter_(1, column, own)[:, :columns]
    accepted = kept.sum(1) - 1
    last = indices.gather(1, accepted.clamp(max=columns - 1)[:, None])
    return Walk(indices=indices, accepted=accepted, bonus=chosen.gather(1, last)[:, 0])


def greedy(parents: Tensor, token_ids: Tensor, logits: Tensor, max_depth: int | None = None) -> Walk:
    """The walk at temperature 0. ``logits``: ``[batch, nodes + 1, vocab]``; the rest as in `walk`."""
    return walk(parents, token_ids, logits.argmax(-1), max_depth)


def sample_and_match(
    parents: Tensor,
    token_ids: Tensor,
    logits: Tensor,
    temperature: Setting,
    top_p: Setting,
    top_k: Setting,
    uniforms: Tensor,
    max_depth: int | None = None,
) -> Walk:
    """The walk at temperature > 0: each row draws from the target's filtered distribution, independently.

    Args:
        parents, token_ids, max_depth: as in `walk`.
        logits: ``[batch, nodes + 1, vocab]`` of the target.
        temperature, top_p, top_k: numbers or ``[batch]``, as in `filtered_probs`; temperature 0 is the greedy walk.
        uniforms: ``[batch, nodes + 1]`` float64 in [0, 1), see `keyed_uniforms`. Rows of one depth may share theirs: of
            them at most one is on the path, so the tokens of the path are still drawn independently.
    """
    chosen = draw(filtered_probs(logits, temperature, top_p, top_k), uniforms)
    return walk(parents, token_ids, chosen, max_depth)
