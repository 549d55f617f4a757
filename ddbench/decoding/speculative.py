"""The speculative loop: draft a tree for every sequence, verify all in one target pass, keep the accepted paths."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ddbench.adaptive.policy import Choice
from ddbench.decoding.api import Round
from ddbench.decoding.batch import Batch, Move
from ddbench.decoding.clock import StageClock
from ddbench.decoding.kv import Slots, round_up
from ddbench.decoding.loop import Loop
from ddbench.decoding.masks import tree_mask
from ddbench.decoding.proposal import Proposal, Proposer, Rows
from ddbench.decoding.states import Links
from ddbench.decoding.target import Prompts, Target
from ddbench.tree import PADDING, Walk, walk


class SpeculativeLoop(Loop):
    """One round a step; one transfer of integers from the device a round."""

    def __init__(self, target: Target, batch: Batch, proposer: Proposer, clock: Callable[[], float]) -> None:
        super().__init__(target, batch)
        self.proposer = proposer
        self._stages = StageClock(target.device, clock)

    def admitted(self, prompts: Prompts, features: Tensor | None, first_tokens: Tensor) -> None:
        assert features is not None
        self.proposer.admit(prompts, features, first_tokens)

    def moved(self, move: Move) -> None:
        self.proposer.move(move)

    def membership_changed(self) -> None:
        self._choose = self.chooser(self.batch.active)

    def step(self) -> None:
        stages = self._stages
        stages.start()
        rows = self._rows()
        proposal = self.proposer.propose(rows, stages)

        chosen = self._verify(rows, proposal)
        stages.mark("verify")

        path = walk(proposal.parents, proposal.tokens, chosen, proposal.max_depth)
        self.verified(path)
        index = path.indices.clamp(min=0)
        next_tokens = chosen.gather(1, index)  # after each node of the path: the next accepted token, at last the bonus
        tally = (path.accepted, (proposal.parents != PADDING).sum(dim=1), proposal.depths.amax(dim=1))
        numbers = torch.cat((torch.stack(tally, dim=1), next_tokens, path.indices), dim=1).tolist()
        accepted = [row[0] for row in numbers]
        steps = path.indices.shape[1]
        kept = self._emit([row[3 : 4 + row[0]] for row in numbers])
        longest = max(accepted) + 1
        if any(row[3 + steps : 4 + steps + row[0]] != list(range(row[0] + 1)) for row in numbers):
            self.compact(rows.length, path.indices[:, :longest])
        self.target.commit(index.gather(1, path.accepted[:, None])[:, 0])
        stages.mark("commit")

        if any(row.finish_reason is None for row in self.batch.active):
            features = self.target.features(index[:, :longest])
            self.proposer.commit(rows, features, next_tokens[:, :longest], path.accepted)
            stages.mark("draft")
        seconds = stages.read()
        in_flight, choice = len(numbers), self.chosen()
        for row, (taken, drafted, depth, *_), emitted in zip(self.batch.active, numbers, kept, strict=True):
            row.rounds.append(
                Round(
                    drafted=drafted,
                    tree_depth=depth,
                    accepted=min(taken, emitted),
                    accepted_raw=taken,
                    emitted=emitted,
                    in_flight=in_flight,
                    draft_s=seconds["draft"],
                    build_s=seconds["build"],
                    verify_s=seconds["verify"],
                    commit_s=seconds["commit"],
                    verify_width=proposal.tokens.shape[1] + 1,
                    choice=choice.kind if choice else None,
                    chosen_nodes=choice.nodes if choice else None,
                )
            )

    def verified(self, path: Walk) -> None:
        """The target has spoken; nothing more to do, unless overridden."""
        return None

    def chosen(self) -> Choice | None:
        """What a policy chose for this round; None where there is no policy."""
        return None

    def compact(self, length: Tensor, path: Tensor) -> None:
        """Moves the target's keys and values of the accepted path behind the committed ones."""
        self.target.cache.compact(length, path)

    def _rows(self) -> Rows:
        lengths = [row.length for row in self.batch.active]
        bonus = [row.output[-1] for row in self.batch.active]
        both = torch.tensor([lengths, bonus], device=self.target.device)
        return Rows(lengths, both[0], both[1])

    def _verify(self, rows: Rows, proposal: Proposal) -> Tensor:
        """The target's choice after the root and after every node, [rows, nodes + 1]."""
        count = proposal.tokens.shape[1] + 1
        ids = torch.cat((rows.bonus[:, None], proposal.tokens), dim=1)
        positions = torch.cat((rows.length[:, None], rows.length[:, None] + proposal.depths), dim=1)
        kv_len = round_up(max(rows.lengths) + count)
        mask = tree_mask(proposal.ancestors, rows.length, kv_len, self.target.dtype)
        slots = Slots.following(rows.lengths, rows.length, count)
        self._stages.mark("build")
        logits = self.target.forward(ids, positions, mask, slots, kv_len, links=self.links(proposal))
        return self._choose(logits, positions + 1)

    def links(self, proposal: Proposal) -> Links | None:
        """Whose state each node begins from; None where no layer keeps one."""
        return None if self.target.states is None else Links.of(proposal.parents, proposal.ancestors)

    def _emit(self, tokens: list[list[int]]) -> list[int]:
        now = self.batch.now()
        kept = []
        for row, new in zip(self.batch.active, tokens, strict=True):
            row.length += len(new)
            kept.append(row.emit(new, now))
        return kept
