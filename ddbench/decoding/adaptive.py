"""DDTree with a budget chosen at every step: one nested build, cut as a policy says, or no draft at all.

Autoregressive steps leave the drafter out. The features of their tokens are kept, and taken in by its cache in one pass
before it drafts again or the rows of the batch change.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ddbench.adaptive import Adaptive, Choice, Offer, expectation, kept_of, on_spine
from ddbench.decoding.api import Round
from ddbench.decoding.autoregressive import AutoregressiveLoop
from ddbench.decoding.batch import Batch, Move
from ddbench.decoding.block import TreeProposer
from ddbench.decoding.clock import StageClock
from ddbench.decoding.masks import chain_ancestors
from ddbench.decoding.proposal import Proposal, Rows
from ddbench.decoding.speculative import SpeculativeLoop
from ddbench.decoding.target import Prompts, Target
from ddbench.drafters import DFlashDrafter
from ddbench.tree import Walk

_LATE = 64  # autoregressive steps whose features are kept at most


class AdaptiveProposer(TreeProposer):
    """Builds once at the largest budget and offers what the policy's control chooses of it: ``choice``."""

    on_device = False

    def __init__(self, drafter: DFlashDrafter, depth: int, adaptive: Adaptive) -> None:
        candidates = adaptive.candidates
        super().__init__(drafter, depth, max(1, candidates.most))
        self.nodes = max((candidates.most, *candidates.chains))
        self.candidates = candidates
        self.control = adaptive.policy.start(candidates, adaptive.costs, depth)
        self._built = max(1, candidates.most)

    def bind(self, target: Target, rows: int, length: int) -> None:
        super().bind(target, rows, length)
        steps = torch.arange(self.depth, device=target.device)
        self._parents = (steps - 1).expand(rows, -1)
        self._depths = (steps + 1).expand(rows, -1)

    def propose(self, rows: Rows, clock: StageClock) -> Proposal:
        self._context = sum(rows.lengths) / len(rows.lengths)
        return super().propose(rows, clock)

    def offer(self, logits: Tensor) -> Proposal:
        logits = logits.float()
        top, ids = logits.topk(self._candidates, dim=-1)
        log_probs = top - logits.logsumexp(dim=-1, keepdim=True)
        tree = self._build(log_probs, self._built)
        spine = on_spine(tree, self.depth)
        best = log_probs[:, :, 0].clamp(max=0.0).cpu().numpy()
        scores, depths, spines = (part.cpu().numpy() for part in (tree.scores, tree.depths, spine))
        chain = np.add.accumulate(best, axis=1)
        told = expectation(scores, depths, spines, chain, self.candidates, self.control.factors)
        self.choice = self.control.choose(Offer(self._context, *told))
        nodes = self.choice.nodes
        if self.choice.kind == "chain":
            self._spine = None
            count = len(ids)
            places = self._parents[:count, :nodes], self._depths[:count, :nodes]
            return Proposal(ids[:, :nodes, 0], *places, chain_ancestors(nodes + 1, ids.device), nodes)
        self._spine = spine[:, :nodes]
        cut = tree.sliced(nodes)
        return Proposal.of_tree(cut.token_ids(ids), cut.parents, cut.depths, self.depth)

    def learn(self, path: Walk) -> None:
        """Tells the control what the target accepted of the last proposal."""
        accepted = path.accepted.tolist()
        on_chain = accepted if self._spine is None else self._on_chain(path, self._spine)
        self.control.learn(kept_of(accepted, on_chain, self.depth))

    @staticmethod
    def _on_chain(path: Walk, spine: Tensor) -> list[int]:
        """How many of each row's accepted nodes, from the first on, are the drafter's own chain."""
        nodes = path.indices[:, 1:]
        if nodes.shape[1] == 0:
            return [0] * len(nodes)
        on = spine.gather(1, (nodes - 1).clamp(min=0)) & (nodes > 0)
        found: list[int] = on.int().cumprod(dim=1).sum(dim=1).tolist()
        return found


class AdaptiveLoop(SpeculativeLoop):
    """Rounds and autoregressive steps, as the policy says; both are stored as rounds."""

    proposer: AdaptiveProposer

    def __init__(self, target: Target, batch: Batch, proposer: AdaptiveProposer, clock: Callable[[], float]) -> None:
        super().__init__(target, batch, proposer, clock)
        self._plain = AutoregressiveLoop(target, batch)
        self._ready = False  # the plain loop has this batch's rows and tokens
        self._late: list[tuple[Tensor, Tensor]] = []  # features and next tokens of steps that the drafter has not seen
        self._since: Rows | None = None  # the rows when they began

    def admitted(self, prompts: Prompts, features: Tensor | None, first_tokens: Tensor) -> None:
        self._catch_up()
        super().admitted(prompts, features, first_tokens)

    def moved(self, move: Move) -> None:
        self._catch_up()
        super().moved(move)

    def membership_changed(self) -> None:
        self._catch_up()
        self._ready = False
        super().membership_changed()

    def verified(self, path: Walk) -> None:
        self.proposer.learn(path)

    def chosen(self) -> Choice | None:
        return self.proposer.choice

    def step(self) -> None:
        lengths = [row.length for row in self.batch.active]
        if not self.proposer.control.drafts(len(lengths), sum(lengths) / len(lengths)):
            return self._plain_step()
        self._catch_up()
        self._ready = False
        return super().step()

    def _plain_step(self) -> None:
        if not self._ready:
            self._plain.membership_changed()
            self._ready = True
        if self._since is None:
            self._since = self._rows()
        rows = list(self.batch.active)
        self._stages.start()
        self._plain.step()
        self._stages.mark("verify")
        first = torch.zeros(len(rows), 1, dtype=torch.int64, device=self.target.device)
        self._late.append((self.target.features(first), self._plain.tokens))
        if len(self._late) == _LATE:
            self._catch_up()
        self._stages.mark("commit")
        seconds = self._stages.read()
        step = Round(
            drafted=0,
            tree_depth=0,
            accepted=0,
            accepted_raw=0,
            emitted=1,
            in_flight=len(rows),
            draft_s=seconds["draft"],
            build_s=seconds["build"],
            verify_s=seconds["verify"],
            commit_s=seconds["commit"],
            verify_width=1,
            choice="autoregressive",
            chosen_nodes=0,
        )
        for row in rows:
            row.rounds.append(step)

    def _catch_up(self) -> None:
        """The drafter takes in what autoregressive steps have committed."""
        if self._since is None:
            return
        features, tokens = (torch.cat(parts, dim=1) for parts in zip(*self._late, strict=True))
        steps = torch.full((len(tokens),), len(self._late) - 1, device=tokens.device)
        self.proposer.commit(self._since, features, tokens, steps)
        self._late, self._since = [], None
