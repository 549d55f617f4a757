"""What a drafted tree is, and what may be asked of one."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ddbench.errors import ConfigError

ROOT = -1  # parent of a node of depth 1
PADDING = -2  # parent of a slot that holds no node


@dataclass(frozen=True)
class Tree:
    """A batch of drafted trees, one a row; the root (the bonus token) is not among the nodes.

    Nodes come best first: by score, and equal scores by the lexicographically smaller rank tuple, so that a parent
    always stands before its children and the first ``m`` nodes are the tree of budget ``m``. A forced spine comes
    before the rest. Slots without a node follow all nodes of their row.

    Attributes, each ``[batch, nodes]``:
        scores: cumulative log-probability of the path, float32, summed from the root down; padding ``-inf``.
        parents: index of the parent node; ``-1`` a child of the root, ``-2`` padding.
        depths: 1 for a child of the root; padding 0.
        ranks: which of the drafter's candidates at that depth the node is, 0 the most probable; padding ``-1``.
    """

    scores: Tensor
    parents: Tensor
    depths: Tensor
    ranks: Tensor

    @property
    def valid(self) -> Tensor:
        """Which slots hold a node: bool ``[batch, nodes]``."""
        return self.parents != PADDING

    def counts(self) -> Tensor:
        """Nodes in each tree: int64 ``[batch]``."""
        return self.valid.sum(dim=1)

    def token_ids(self, top_ids: Tensor) -> Tensor:
        """Token of every node, ``[batch, nodes]``, padding ``-1``.

        Args:
            top_ids: ``[batch, depth, k]``, the ids that belong to the log-probabilities the tree was built from.
        """
        batch, depth, k = top_ids.shape
        if batch != self.depths.shape[0]:
            raise ConfigError(
                "top_ids.shape", tuple(top_ids.shape), f"needs the tree's batch of {self.depths.shape[0]}"
            )
        slot = (self.depths - 1).clamp(0, depth - 1) * k + self.ranks.clamp(0, k - 1)
        tokens = top_ids.reshape(batch, depth * k).gather(1, slot)
        return torch.where(self.valid, tokens, -1)

    def sliced(self, nodes: int) -> Tree:
        """The tree of a smaller budget: its first ``nodes`` nodes. Raises ConfigError unless 1 <= nodes <= built."""
        built = self.scores.shape[1]
        if not 1 <= nodes <= built:
            raise ConfigError("nodes", nodes, f"a slice of a tree built with {built} nodes takes 1 to {built}")
        return Tree(*(part[:, :nodes] for part in (self.scores, self.parents, self.depths, self.ranks)))


def float32(value: float) -> float:
    """The float32 number nearest to ``value``, as a float; infinite where float32 overflows."""
    return ctypes.c_float(value).value


@dataclass(frozen=True)
class Limits:
    """A checked build request: every form of the build starts from one, so that all refuse the same things."""

    nodes: int
    depth: int
    width: int  # candidates of a position that can matter: min(width, k, nodes)
    floor: float  # least cumulative log-probability (a float32 number), -inf for none
    force_spine: bool

    @classmethod
    def of(
        cls,
        log_probs: Tensor,
        nodes: int,
        width: int | None,
        depth: int | None,
        min_log_prob: float | None,
        force_spine: bool,
    ) -> Limits:
        """Checks shapes and numbers; reads no value of ``log_probs``. Raises ConfigError."""
        if log_probs.dim() != 3 or 0 in log_probs.shape or not log_probs.is_floating_point():
            found = f"{log_probs.dtype}{list(log_probs.shape)}"
            raise ConfigError("log_probs", found, "floating point of shape [batch, depth, k], none of them 0")
        drafted, k = log_probs.shape[1], log_probs.shape[2]
        if nodes < 1:
            raise ConfigError("nodes", nodes, "at least 1")
        if width is not None and width < 1:
            raise ConfigError("width", width, "at least 1, or null for unlimited")
        if depth is not None and not 1 <= depth <= drafted:
            raise ConfigError("depth", depth, f"1 to {drafted}, the positions that were drafted")
        if min_log_prob is not None and (math.isnan(min_log_prob) or min_log_prob > 0):
            raise ConfigError("min_log_prob", min_log_prob, "a log-probability, at most 0, or null for none")
        depth = drafted if depth is None else depth
        if force_spine and nodes < depth:
            raise ConfigError("nodes", nodes, f"a forced spine needs at least its depth of {depth}")
        return cls(
            nodes=nodes,
            depth=depth,
            width=min(k, nodes, k if width is None else width),
            floor=-math.inf if min_log_prob is None else float32(min_log_prob),
            force_spine=force_spine,
        )

    def prepare(self, log_probs: Tensor) -> Tensor:
        """The part of ``log_probs`` that can matter, float32 ``[batch, depth, width]``, at most 0, every zero a
        negative one: so the bits of scores sort as the scores do.

        Rounding may leave a log-probability slightly above 0: it counts as 0, so that a path never gains by growing.
        On a CPU, NaN and rows that are not sorted raise ConfigError. On a GPU looking would stall the stream: there NaN
        counts as ``-inf``, and what an unsorted row gives is not defined, but stays within its own row of the batch.
        """
        used = log_probs.detach()[:, : self.depth, : self.width].to(torch.float32)
        if used.device.type == "cpu":
            self._check(used)
        else:
            used = used.masked_fill(used.isnan(), -math.inf)
        return used.clamp(max=0.0).copysign(-1.0)

    @staticmethod
    def _check(used: Tensor) -> None:
        values = used.numpy()
        right = values[..., 1:] if values.shape[2] > 1 else values
        if bool((values[..., : right.shape[2]] >= right).all()):  # with NaN no comparison holds
            return
        if bool(np.isnan(values).any()):
            raise ConfigError("log_probs", "NaN", "numbers, or -inf for what the drafter rules out")
        raise ConfigError("log_probs", "unsorted", "each position sorted from the most probable candidate down")
