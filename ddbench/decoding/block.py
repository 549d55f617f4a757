"""DFlash as a proposer: the block drafted whole in one pass, offered as a chain or as a best-first tree (DDTree)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ddbench.decoding.batch import Move
from ddbench.decoding.clock import StageClock
from ddbench.decoding.graphs import Graphs, stepped
from ddbench.decoding.kv import KVBuffer, Slots, round_up
from ddbench.decoding.masks import chain_ancestors, committed_mask
from ddbench.decoding.proposal import Proposal, Proposer, Rows
from ddbench.decoding.target import Prompts, Target
from ddbench.drafters import DFlashDrafter
from ddbench.tree import Tree, build_tree, build_tree_compiled


class BlockProposer(Proposer):
    """Keeps the drafter's keys and values of committed positions; the block's own are never kept (DFlash §3).

    ``on_device``: what is offered follows from the logits alone, without a word to the host: a graph can hold it.
    """

    on_device = True

    def __init__(self, drafter: DFlashDrafter, depth: int) -> None:
        config = drafter.config
        self.drafter = drafter
        self.depth = depth
        self.nodes = depth
        self.taps = tuple(layer + 1 for layer in config.target_layer_ids)

    def bind(self, target: Target, rows: int, length: int) -> None:
        config = self.drafter.config
        self.target = target
        self.cache = KVBuffer(
            config.num_layers,
            rows,
            config.dims.num_kv_heads,
            length,
            config.dims.head_dim,
            target.dtype,
            target.device,
        )
        self._masks = torch.full((rows, config.block_size - 1), config.mask_token_id, device=target.device)

    def admit(self, prompts: Prompts, features: Tensor, first_tokens: Tensor) -> None:
        slots = Slots.fresh(prompts.first_row, prompts.lengths, prompts.positions, self.cache.spare)
        self._keep(features, prompts.positions.clamp(min=0), slots)

    def commit(self, rows: Rows, features: Tensor, next_tokens: Tensor, accepted: Tensor) -> None:
        path = features.shape[1]
        self._keep(features, rows.positions(path), Slots.following(rows.lengths, rows.length, path))

    def move(self, move: Move) -> None:
        self.cache.move_row(move.source, move.target, move.length)

    def propose(self, rows: Rows, clock: StageClock) -> Proposal:
        graphs = self.target.graphs
        logits = self.draft(rows) if graphs is None else self._draft_replayed(graphs, rows)
        clock.mark("draft")
        if graphs is None or not self.on_device:
            proposal = self.offer(logits)
        else:
            proposal = graphs.run(("offer", *logits.shape), self.offer, logits)
        clock.mark("build")
        return proposal

    def draft(self, rows: Rows) -> Tensor:
        """Logits [rows, depth, vocab] of the tokens 1, 2, ... places after the bonus token."""
        count, block = len(rows.lengths), self.drafter.config.block_size
        ids = torch.cat((rows.bonus[:, None], self._masks[:count]), dim=1)
        positions = rows.positions(block)
        longest, mask = max(rows.lengths), None
        kv_len = longest
        if min(rows.lengths) != longest:
            kv_len = min(round_up(longest), self.cache.length)
            mask = functional.pad(committed_mask(rows.length, kv_len, self.target.dtype), (0, block))
        return self._block(ids, positions, kv_len, mask)

    def _draft_replayed(self, graphs: Graphs, rows: Rows) -> Tensor:
        """The same from a graph, one for rows and length of the view."""
        count, block = len(rows.lengths), self.drafter.config.block_size
        kv_len = stepped(max(rows.lengths), self.cache.length)

        def run(bonus: Tensor, length: Tensor) -> Tensor:
            ids = torch.cat((bonus[:, None], self._masks[:count]), dim=1)
            positions = length[:, None] + torch.arange(block, device=length.device)
            mask = functional.pad(committed_mask(length, kv_len, self.target.dtype), (0, block))
            return self._block(ids, positions, kv_len, mask)

        return graphs.run(("draft", count, kv_len), run, rows.bonus, rows.length)

    def _block(self, ids: Tensor, positions: Tensor, kv_len: int, mask: Tensor | None) -> Tensor:
        context = [self.cache.view(layer, len(ids), kv_len) for layer in range(self.cache.layers)]
        hidden = self.drafter(self.target.embed(ids), positions, context, mask)
        logits: Tensor = self.target.head(hidden[:, 1 : self.depth + 1])
        return logits

    @abstractmethod
    def offer(self, logits: Tensor) -> Proposal:
        """The tree made of the block's logits [rows, depth, vocab]."""

    def _keep(self, features: Tensor, positions: Tensor, slots: Slots) -> None:
        context = self.drafter.project_features(features)
        for layer, (key, value) in enumerate(self.drafter.context_kv(context, positions)):
            self.cache.write(layer, slots, key, value)


class ChainProposer(BlockProposer):
    """The most probable token of every position: linear DFlash."""

    def bind(self, target: Target, rows: int, length: int) -> None:
        super().bind(target, rows, length)
        steps = torch.arange(self.depth, device=target.device)
        self._parents = (steps - 1).expand(rows, -1)
        self._depths = (steps + 1).expand(rows, -1)
        self._ancestors = chain_ancestors(self.depth + 1, target.device)

    def offer(self, logits: Tensor) -> Proposal:
        tokens = logits.argmax(dim=-1)
        count = tokens.shape[0]
        return Proposal(tokens, self._parents[:count], self._depths[:count], self._ancestors, self.depth)


class TreeProposer(BlockProposer):
    """DDTree: the ``nodes`` most probable prefixes under the block's own product distribution (DDTree §3, Alg. 1).

    Log-probabilities are those of the raw drafter logits in float32; the request's temperature does not touch them.
    """

    def __init__(
        self,
        drafter: DFlashDrafter,
        depth: int,
        nodes: int,
        width: int | None = None,
        min_log_prob: float | None = None,
        force_spine: bool = False,
    ) -> None:
        super().__init__(drafter, depth)
        self.nodes = nodes
        self._shape: dict[str, Any] = {"width": width, "min_log_prob": min_log_prob, "force_spine": force_spine}
        self._candidates = min(nodes, width or nodes, drafter.config.vocab_size)

    def bind(self, target: Target, rows: int, length: int) -> None:
        super().bind(target, rows, length)
        self._build = _builder(target.device)
        self._build(torch.zeros(1, self.depth, self._candidates, device=target.device), self.nodes, **self._shape)

    def offer(self, logits: Tensor) -> Proposal:
        logits = logits.float()
        top, ids = logits.topk(self._candidates, dim=-1)
        tree = self._build(top - logits.logsumexp(dim=-1, keepdim=True), self.nodes, **self._shape)
        return Proposal.of_tree(tree.token_ids(ids), tree.parents, tree.depths, self.depth)


def _builder(device: torch.device) -> Callable[..., Tree]:
    """The compiled build where numba is installed and the log-probabilities are on the host, else the batched one."""
    compiled = device.type == "cpu" and find_spec("numba") is not None
    return build_tree_compiled if compiled else build_tree
