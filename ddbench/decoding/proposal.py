"""What a drafter offers the target in one round, and the interface of whatever makes the offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddbench.decoding.batch import Move
from ddbench.decoding.clock import StageClock
from ddbench.decoding.target import Prompts, Target
from ddbench.tree import PADDING, ancestor_mask


@dataclass(frozen=True)
class Rows:
    """The active sequences at the start of a round: committed lengths and the bonus token that follows each."""

    lengths: Sequence[int]
    length: Tensor  # [rows]
    bonus: Tensor  # [rows]; stands at position `length`

    def positions(self, count: int) -> Tensor:
        """[rows, count]: the positions from the bonus token on."""
        return self.length[:, None] + torch.arange(count, device=self.length.device)


@dataclass(frozen=True)
class Proposal:
    """Drafted trees of a batch, root (the bonus token) not counted.

    ``tokens``, ``parents`` and ``depths`` are [rows, nodes]; parent -1 is the root and -2 padding, whose token is any
    valid id. ``ancestors`` is boolean [rows or 1, nodes + 1, nodes + 1] with the root first. No tree is deeper than
    ``max_depth``.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    ancestors: Tensor
    max_depth: int

    @classmethod
    def of_tree(cls, tokens: Tensor, parents: Tensor, depths: Tensor, max_depth: int) -> Proposal:
        """A proposal from a tree whose padding has parent -2; columns that hold padding only are cut off on a CPU."""
        if tokens.device.type == "cpu":  # on CUDA the look would stall the stream for less than it saves
            used = max(1, int((parents != PADDING).any(dim=0).sum()))
            tokens, parents, depths = tokens[:, :used], parents[:, :used], depths[:, :used]
        return cls(tokens.clamp(min=0), parents, depths, ancestor_mask(parents, max_depth), max_depth)


class Proposer(ABC):
    """A drafter with its own cache, as the speculative loop uses it.

    ``taps`` are the target's hidden states that it needs (indices into Hugging Face ``hidden_states``), ``nodes`` the
    most it proposes for a sequence in a round.
    """

    taps: tuple[int, ...]
    nodes: int

    @abstractmethod
    def bind(self, target: Target, rows: int, length: int) -> None:
        """Allocates state for ``rows`` sequences of at most ``length`` tokens, beside ``target``."""

    @abstractmethod
    def admit(self, prompts: Prompts, features: Tensor, first_tokens: Tensor) -> None:
        """Takes in prefilled prompts: ``features`` [rows, tokens, taps * hidden], padded on the left like them."""

    @abstractmethod
    def propose(self, rows: Rows, clock: StageClock) -> Proposal:
        """Drafts for every row; marks the stages draft and build."""

    @abstractmethod
    def commit(self, rows: Rows, features: Tensor, next_tokens: Tensor, accepted: Tensor) -> None:
        """Takes in what a round committed.

        Args:
            rows: as given to :meth:`propose`.
            features: [rows, path, taps * hidden] of the root and the accepted path, padded to the longest.
            next_tokens: the token that follows each of them, [rows, path]; the last of a row is its new bonus token.
            accepted: accepted nodes [rows]; row ``r`` committed ``accepted[r] + 1`` positions.
        """

    @abstractmethod
    def move(self, move: Move) -> None:
        """A sequence changes its row."""
