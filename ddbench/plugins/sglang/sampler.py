"""From the drafter's last hidden states to trees, on the device, as the tail of the drafter's graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ddbench.plugins.sglang.kernels.buffers import Trees
from ddbench.plugins.sglang.offers import Offers
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.recorder import Recorder
from ddbench.plugins.sglang.refused import Refused


class TreeSampler:
    """Logits over the target's head, the best candidates of every position, and each row's best tree of them.

    With tensor parallelism every rank has the head's rows of its own contiguous part of the vocabulary, ascending by
    rank; all ranks merge the same gathered candidates, so they build the same trees.
    """

    def __init__(
        self, ops: Any, trees: Trees, sizes: Sizes, head: Any, group: Any, recorder: Recorder | None = None
    ) -> None:
        """``head``: the target's lm_head. ``group``: SGLang's tensor-parallel group. Raises Refused.

        ``recorder`` is given all candidates that it wants, the trees the best of them.
        """
        self.ops, self.trees, self.sizes, self.recorder = ops, trees, sizes, recorder
        self.candidates = sizes.top_k if recorder is None else recorder.candidates
        self.offers: Offers | None = None  # of a server with an adaptive width
        self.weight, self.first = head_rows(head, group.world_size)
        self.group = group if group.world_size > 1 else None

    def __call__(self, hidden: Tensor, input_ids: Tensor) -> None:
        """Writes the trees of the batch. ``hidden``: ``[R * B, size]``; ``input_ids``: ``[R * B]``, roots first."""
        block = self.sizes.block
        rows = hidden.shape[0] // block
        drafted = hidden.view(rows, block, -1)[:, 1:].reshape(rows * (block - 1), -1)
        logits = torch.matmul(drafted.to(self.weight.dtype), self.weight.T)
        log_probs, ids = self._candidates(logits)
        shape = (rows, block - 1, log_probs.shape[-1])
        log_probs, ids = log_probs.view(shape), ids.view(shape)
        if self.recorder is not None:
            self.recorder.keep(log_probs, ids)
            log_probs, ids = log_probs[:, :, : self.sizes.top_k], ids[:, :, : self.sizes.top_k]
        self.ops.build(self.trees, log_probs, ids, input_ids.view(rows, block)[:, 0])
        if self.offers is not None:
            self.offers.measure(self.trees, log_probs, ids)

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        if self.group is None:
            found: tuple[Tensor, Tensor] = self.ops.candidates(logits, self.candidates)
            return found
        values, ids, lse = self.ops.shard_candidates(logits, self.candidates)
        parts = (self._gather(values), self._gather(ids + self.first), self._gather(lse))
        merged: tuple[Tensor, Tensor] = self.ops.merge(*parts)
        return merged

    def _gather(self, part: Tensor) -> Tensor:
        """``[ranks, *part.shape]``."""
        assert self.group is not None
        flat = part.contiguous().view(-1)
        every = torch.empty(self.group.world_size * flat.numel(), dtype=part.dtype, device=part.device)
        self.group.all_gather_into_tensor(every, flat)
        return every.view(self.group.world_size, *part.shape)


def head_rows(head: Any, ranks: int) -> tuple[Tensor, int]:
    """The rows of an lm_head that stand for tokens, and the token id of the first. Raises Refused."""
    weight = getattr(head, "weight", None)
    if not isinstance(weight, Tensor) or not torch.is_floating_point(weight):
        raise Refused("a target without an lm_head of floating-point weights")
    shard = getattr(head, "shard_indices", None)
    if shard is None:
        if ranks > 1:
            raise Refused("tensor parallelism over an lm_head that does not say which tokens a rank has")
        return weight, 0
    if int(shard.num_added_elements) != 0:
        raise Refused("a target with tokens added to its vocabulary by an adapter")
    return weight[: int(shard.num_org_elements)], int(shard.org_vocab_start_index)
