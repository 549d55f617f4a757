"""EAGLE-3 as a proposer: the drafter runs depth by depth on a beam, and the best of all it made are the tree."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddbench.decoding.batch import Move
from ddbench.decoding.clock import StageClock
from ddbench.decoding.kv import KVBuffer, Slots, round_up
from ddbench.decoding.masks import additive, chain_ancestors, committed_mask
from ddbench.decoding.proposal import Proposal, Proposer, Rows
from ddbench.decoding.target import Prompts, Target
from ddbench.drafters import Eagle3Drafter
from ddbench.tree import EagleExpansion


class EagleProposer(Proposer):
    """Width 1 is the chain.

    The drafter's row ``t`` (token ``t + 1``, feature of position ``t``) is cached once both are committed, with the
    target's own feature; rows of drafted nodes carry the drafter's hidden state instead and live for one round. The
    newest committed row's hidden state is kept per sequence: its logits are the first level of the next tree.
    """

    def __init__(self, drafter: Eagle3Drafter, depth: int, width: int, nodes: int, num_target_layers: int) -> None:
        self.drafter = drafter
        self.depth = depth
        self.width = width
        self.nodes = nodes
        self.taps = drafter.config.taps(num_target_layers)

    def bind(self, target: Target, rows: int, length: int) -> None:
        dims = self.drafter.config.dims
        self.target = target
        own = getattr(self.drafter, "embed_tokens", None)
        self._embed: nn.Module = target.embed if own is None else own
        self.cache = KVBuffer(1, rows, dims.num_kv_heads, length, dims.head_dim, target.dtype, target.device)
        self._newest = torch.zeros(rows, dims.hidden_size, dtype=target.dtype, device=target.device)

    def admit(self, prompts: Prompts, features: Tensor, first_tokens: Tensor) -> None:
        next_tokens = torch.cat((prompts.ids[:, 1:], first_tokens[:, None]), dim=1)
        slots = Slots.fresh(prompts.first_row, prompts.lengths, prompts.positions, self.cache.spare)
        hidden, (key, value) = self.drafter(
            self._embed(next_tokens),
            self.drafter.project_features(features),
            prompts.positions.clamp(min=0),
            None,
            prompts.mask,
        )
        self.cache.write(0, slots, key, value)
        self._newest[prompts.first_row : prompts.first_row + len(prompts.lengths)] = hidden[:, -1]

    def commit(self, rows: Rows, features: Tensor, next_tokens: Tensor, accepted: Tensor) -> None:
        count, path = next_tokens.shape
        kv_len, committed = self._committed(rows)
        new = chain_ancestors(path, self.target.device)
        mask = torch.cat(
            (committed.expand(-1, -1, path, -1), additive(new, self.target.dtype)[:, None].expand(count, -1, -1, -1)),
            dim=-1,
        )
        hidden, (key, value) = self.drafter(
            self._embed(next_tokens),
            self.drafter.project_features(features),
            rows.positions(path),
            self.cache.view(0, count, kv_len),
            mask,
        )
        self.cache.write(0, Slots.following(rows.lengths, rows.length, path), key, value)
        self._newest[:count] = hidden[torch.arange(count, device=accepted.device), accepted]

    def move(self, move: Move) -> None:
        self.cache.move_row(move.source, move.target, move.length)
        self._newest[move.target] = self._newest[move.source]

    def propose(self, rows: Rows, clock: StageClock) -> Proposal:
        expansion = self.expand(rows)
        clock.mark("draft")
        tree, tokens = expansion.rerank()
        proposal = Proposal.of_tree(tokens, tree.parents, tree.depths, self.depth)
        clock.mark("build")
        return proposal

    def expand(self, rows: Rows) -> EagleExpansion:
        """Runs the drafter ``depth - 1`` times on the beam (its first level comes from the newest committed row)."""
        count = len(rows.lengths)
        expansion = EagleExpansion(count, self.depth, self.width, self.nodes, self.target.device)
        hidden = self._newest[:count, None]
        log_probs, ids = self._candidates(hidden)
        expansion.first(log_probs[:, 0], ids[:, 0])
        if self.depth == 1:
            return expansion
        kv_len, committed = self._committed(rows)
        committed = committed.expand(-1, -1, self.width, -1)
        past = self.cache.view(0, count, kv_len)
        while expansion.level < self.depth:
            parents = expansion.beam_parents[:, :, None].expand(-1, -1, hidden.shape[2])
            positions = (rows.length + (expansion.level - 1))[:, None].expand(-1, self.width)
            drafted = additive(expansion.beam_mask, self.target.dtype)[:, None]
            hidden, (key, value) = self.drafter(
                self._embed(expansion.beam_token_ids),
                hidden.gather(1, parents),
                positions,
                past,
                torch.cat((committed, drafted), dim=-1),
            )
            expansion.expand(*self._candidates(hidden))
            if expansion.level < self.depth:
                past = (torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2))
        return expansion

    def _committed(self, rows: Rows) -> tuple[int, Tensor]:
        kv_len = min(round_up(max(rows.lengths)), self.cache.length)
        return kv_len, committed_mask(rows.length, kv_len, self.target.dtype)

    def _candidates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and target ids [rows, tokens, width] of the most probable tokens after ``hidden``."""
        logits = self.drafter.logits(hidden).float()
        top, ids = logits.topk(self.width, dim=-1)
        return top - logits.logsumexp(dim=-1, keepdim=True), self.drafter.to_target_ids(ids)
