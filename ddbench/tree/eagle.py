"""The tree of an autoregressive drafter: EAGLE-2's expansion and reranking, which EAGLE-3 keeps.

Depth by depth the drafter runs on a beam of ``width`` nodes; each gives its ``width`` best children; the best
``width`` of those are the next beam. In the end the ``nodes`` most probable of all candidates ever made are the tree
(EAGLE-2 paper, sections 4.1 and 4.2). SGLang's flags for the same: ``depth`` is its number
of steps, ``width`` its top-k, and the number of draft tokens, which counts the root, is ``nodes + 1``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ddbench.errors import ConfigError
from ddbench.tree.shape import PADDING, Tree


class EagleExpansion:
    """Grows the trees of a batch with the drafter in the loop. A width of 1 gives the chain.

    ::

        expansion = EagleExpansion(batch, depth, width, nodes, device)
        expansion.first(log_probs)                      # the drafter's after the root
        while expansion.level < depth:
            ...run the drafter on expansion.beam_token_ids, features gathered by expansion.beam_parents,
               attending to what it drafted before by expansion.beam_mask...
            expansion.expand(log_probs)                 # [batch, width, vocab]
        tree, token_ids = expansion.rerank()

    The beam, best first, is the input of the drafter's next step:
        beam_token_ids ``[batch, width]``; beam_scores ``[batch, width]``, cumulative log-probabilities, ``-inf`` for
        a slot that holds no node (its token is some valid id); beam_parents ``[batch, width]``, the slot of the
        parent in the beam before (0 after `first`, where the parent is the root).

    Nothing synchronises with the host.
    """

    beam_token_ids: Tensor
    beam_scores: Tensor
    beam_parents: Tensor

    def __init__(self, batch: int, depth: int, width: int, nodes: int, device: torch.device | str = "cpu") -> None:
        for key, value in (("batch", batch), ("depth", depth), ("width", width), ("nodes", nodes)):
            if value < 1:
                raise ConfigError(key, value, "at least 1")
        most = self.candidates(depth, width)
        if nodes > most:
            raise ConfigError("nodes", nodes, f"at most {most}, the candidates of depth {depth} and width {width}")
        self.batch, self.depth, self.width, self.nodes = batch, depth, width, nodes
        self.device = torch.device(device)
        self.level = 0
        self._scores: list[Tensor] = []  # candidates of each level, [batch, width] or [batch, width * width]
        self._tokens: list[Tensor] = []
        self._beams: list[Tensor] = []  # which candidates of the level make the beam, [batch, width]
        self._ancestry: Tensor  # [batch, width, level]: slot of the ancestor in each beam so far, own slot last

    @staticmethod
    def candidates(depth: int, width: int) -> int:
        """Nodes that an expansion makes before reranking."""
        return width + (depth - 1) * width * width

    def first(self, log_probs: Tensor, ids: Tensor | None = None) -> None:
        """Takes the drafter's log-probabilities after the root.

        Args:
            log_probs: ``[batch, k]``, k >= width, in any order.
            ids: ``[batch, k]``, the tokens they belong to; None: their index.
        """
        if self.level:
            raise ConfigError("first", self.level, "called once, before expand")
        scores, tokens = self._best_children(log_probs[:, None], ids if ids is None else ids[:, None], (self.batch, 1))
        self._scores.append(scores[:, 0] + 0.0)
        self._tokens.append(tokens[:, 0])
        slots = torch.arange(self.width, device=self.device).expand(self.batch, -1)
        self._set_beam(slots, torch.zeros_like(slots))
        self._ancestry = slots[:, :, None]

    def expand(self, log_probs: Tensor, ids: Tensor | None = None) -> None:
        """Takes the drafter's log-probabilities after every node of the beam and moves the beam one level down.

        Args:
            log_probs: ``[batch, width, k]``, k >= width, in any order.
            ids: ``[batch, width, k]``, the tokens they belong to; None: their index.
        """
        if not 1 <= self.level < self.depth:
            raise ConfigError("expand", self.level, f"called after first, for levels 2 to {self.depth}")
        steps, tokens = self._best_children(log_probs, ids, (self.batch, self.width))
        scores = (self.beam_scores[:, :, None] + steps).flatten(1)
        self._scores.append(scores)
        self._tokens.append(tokens.flatten(1))
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, : self.width]
        parents = best // self.width
        self._set_beam(best, parents)
        inherited = self._ancestry.gather(1, parents[:, :, None].expand(-1, -1, self._ancestry.shape[2]))
        own = torch.arange(self.width, device=self.device).expand(self.batch, -1)
        self._ancestry = torch.cat([inherited, own[:, :, None]], dim=2)

    @property
    def beam_mask(self) -> Tensor:
        """bool ``[batch, width, level * width]``: which drafted rows each node of the beam sees.

        Rows are those of all beams so far, the present one last: a node sees its ancestors and itself.
        """
        slots = torch.arange(self.width, device=self.device)
        return (self._ancestry[:, :, :, None] == slots).flatten(2)

    def rerank(self, nodes: int | None = None) -> tuple[Tree, Tensor]:
        """The most probable ``nodes`` candidates (default: those of the constructor) as a tree, and its ``token_ids``.

        Best first; equal scores by depth, then by the parent's place in its beam, then by rank. A candidate is never
        more probable than its parent, so the tree is prefix-closed; ``-inf`` makes no node. ``token_ids`` is
        ``[batch, nodes]``, padding -1.
        """
        nodes = self.nodes if nodes is None else nodes
        if not 1 <= nodes <= self.nodes:
            raise ConfigError("nodes", nodes, f"1 to {self.nodes}")
        made = torch.cat(self._scores, dim=1)
        if made.shape[1] < nodes:
            raise ConfigError("nodes", nodes, f"at most {made.shape[1]}, the candidates made in {self.level} levels")
        scores, chosen = (part[:, :nodes] for part in made.sort(dim=1, descending=True, stable=True))
        valid = scores > -math.inf

        w = self.width
        level = torch.where(chosen < w, 0, (chosen - w) // (w * w) + 1)  # 0 for children of the root
        within = torch.where(level == 0, chosen, (chosen - w) % (w * w))
        # The parent of a candidate sits in slot `within // w` of the beam one level up, which names it as a candidate.
        beams = torch.stack(self._beams, dim=1)  # [batch, level, width], as indices among all candidates
        parent = beams.flatten(1).gather(1, ((level - 1) * w + within // w).clamp(min=0))
        place = torch.full_like(made, -1, dtype=torch.int64)
        place.scatter_(1, chosen, torch.arange(nodes, device=self.device).expand(self.batch, -1))
        parents = torch.where(level == 0, -1, place.gather(1, parent))
        tokens = torch.cat(self._tokens, dim=1).gather(1, chosen)
        tree = Tree(
            scores=scores,
            parents=parents.masked_fill(~valid, PADDING),
            depths=(level + 1).masked_fill(~valid, 0),
            ranks=(within % w).masked_fill(~valid, -1),
        )
        return tree, tokens.masked_fill(~valid, -1)

    def _set_beam(self, chosen: Tensor, parents: Tensor) -> None:
        """``chosen``: which of the newest level's candidates, ``[batch, width]``."""
        self.beam_scores = self._scores[-1].gather(1, chosen)
        self.beam_token_ids = self._tokens[-1].gather(1, chosen)
        self.beam_parents = parents
        before = 0 if self.level == 0 else self.candidates(self.level, self.width)
        self._beams.append(chosen + before)
        self.level += 1

    def _best_children(self, log_probs: Tensor, ids: Tensor | None, lead: tuple[int, int]) -> tuple[Tensor, Tensor]:
        if log_probs.shape[:-1] != lead or log_probs.shape[-1] < self.width:
            allowed = f"{[*lead, 'k']} with k >= width {self.width}"
            raise ConfigError("log_probs.shape", tuple(log_probs.shape), allowed)
        if ids is not None and ids.shape != log_probs.shape:
            raise ConfigError("ids.shape", tuple(ids.shape), f"that of log_probs, {tuple(log_probs.shape)}")
        # Rounding may leave a log-probability above 0, and NaN is no candidate: a child never beats its parent.
        usable = log_probs.float().nan_to_num(nan=-math.inf, neginf=-math.inf, posinf=0.0).clamp(max=0.0)
        best, index = usable.topk(self.width, dim=-1)
        return best, index if ids is None else ids.gather(-1, index)
