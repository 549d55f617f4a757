"""What an adaptive engine would see at every anchor, and what would come of each of its candidates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ddbench.adaptive import Candidates, Choice, Offer, expectation, kept_of, on_spine
from ddbench.errors import ConfigError
from ddbench.replay.family import Family
from ddbench.replay.trace import TraceSet
from ddbench.tree import build_tree

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
_CHUNK = 256  # anchors whose trees are built at once


@dataclass(frozen=True)
class Offers:
    """One nested build at every anchor, no width or depth limit, and what the true text makes of it.

    Attributes, ``[anchors, ...]``:
        scores, depths, spine: ``[anchors, nodes]`` as an engine's build has them.
        chain: ``[anchors, depth]`` log-probabilities of the drafter's own chain from the root down, float32 sums.
        accepted: ``[anchors, candidates]`` drafted tokens that each candidate keeps, before clipping.
        drafted: ``[anchors, candidates]`` its nodes.
        lead: ``[anchors]`` tokens of the true text that are the chain's.
    """

    traces: TraceSet
    candidates: Candidates
    scores: NDArray[np.float32] = field(repr=False)
    depths: Ints = field(repr=False)
    spine: NDArray[np.bool_] = field(repr=False)
    chain: NDArray[np.float32] = field(repr=False)
    accepted: Ints = field(repr=False)
    drafted: Ints = field(repr=False)
    lead: Ints = field(repr=False)

    @classmethod
    def of(cls, traces: TraceSet, candidates: Candidates) -> Offers:
        """Raises ConfigError for a candidate that cannot be replayed."""
        if candidates.most > traces.k:
            raise ConfigError("nodes", candidates.most, f"at most {traces.k}, the candidates recorded (record.nodes)")
        deepest = max(candidates.chains, default=0)
        if deepest > traces.depth:
            raise ConfigError("chains", deepest, f"at most {traces.depth}, the tokens that the drafter proposes")
        lead = np.logical_and.accumulate(traces.ranks == 0, axis=1).sum(1)
        deep = np.asarray(candidates.chains, dtype=np.int64)
        kept: list[Ints] = [np.minimum(lead[:, None], deep)]
        made: list[Ints] = [np.broadcast_to(deep, (len(lead), len(deep)))]
        if candidates.trees:
            family = Family.of(traces, None, candidates.most)
            kept.insert(0, family.accepted(traces.depth, candidates.trees, None, False).T.astype(np.int64))
            made.insert(0, family.drafted(traces.depth, candidates.trees, None, False).T)
        scores, depths, spine = _built(traces, max(1, candidates.most))
        return cls(
            traces=traces,
            candidates=candidates,
            scores=scores,
            depths=depths,
            spine=spine,
            chain=np.add.accumulate(traces.log_probs[:, :, 0], axis=1),
            accepted=np.concatenate(kept, axis=1),
            drafted=np.concatenate(made, axis=1),
            lead=lead,
        )

    def offer(self, anchors: Ints, factors: Floats) -> Offer:
        """What is known when the drafter has spoken at the anchors of a batch, in the order of its rows."""
        parts = self.scores[anchors], self.depths[anchors], self.spine[anchors], self.chain[anchors]
        return Offer(self.context(anchors), *expectation(*parts, self.candidates, factors))

    def context(self, anchors: Ints) -> float:
        """Mean of the committed tokens."""
        return int(self.traces.context[anchors].sum()) / len(anchors)

    def place(self, choice: Choice) -> int:
        """Where a drafting choice stands among the candidates."""
        return self.candidates.all.index(choice)

    def kept(self, anchors: Ints, place: int) -> Ints:
        """What a control learns: ``[2, depth]``."""
        accepted = self.accepted[anchors, place]
        return kept_of(accepted, np.minimum(accepted, self.lead[anchors]), self.traces.depth)


def _built(traces: TraceSet, nodes: int) -> tuple[NDArray[np.float32], Ints, NDArray[np.bool_]]:
    """Scores, depths and chain nodes of the trees, ``[anchors, nodes]``."""
    parts = []
    for log_probs in torch.split(torch.from_numpy(traces.log_probs), _CHUNK):
        tree = build_tree(log_probs, nodes)
        parts.append((tree.scores.numpy(), tree.depths.numpy().astype(np.int8), on_spine(tree).numpy()))
    if not parts:
        return np.zeros((0, nodes), np.float32), np.zeros((0, nodes), np.int8), np.zeros((0, nodes), np.bool_)
    scores, depths, spine = zip(*parts, strict=True)
    return np.concatenate(scores), np.concatenate(depths), np.concatenate(spine)
