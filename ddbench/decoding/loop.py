"""What both decode loops share: admission with one padded prefill, retirement of rows, and the outer loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from ddbench.decoding.batch import Active, Batch, Move
from ddbench.decoding.choose import Chooser
from ddbench.decoding.target import Prompts, Target


class Loop(ABC):
    """Runs a batch to its end: refill, step, retire."""

    def __init__(self, target: Target, batch: Batch) -> None:
        self.target = target
        self.batch = batch

    @abstractmethod
    def step(self) -> None:
        """One decode step of the active rows; may finish some."""

    @abstractmethod
    def membership_changed(self) -> None:
        """The active rows are no longer those of the last step: state on the device is rebuilt from the batch."""

    def admitted(self, prompts: Prompts, features: Tensor | None, first_tokens: Tensor) -> None:
        """Prompts have been prefilled; ``first_tokens`` [rows] follow them. Nothing more to do, unless overridden."""
        return None

    def moved(self, move: Move) -> None:
        """A row has moved; buffers beside the target's cache follow, where there are any."""
        return None

    def run(self) -> None:
        changed = self._refill()
        while self.batch.active:
            if changed:
                self.membership_changed()
            self.step()
            changed = self._retire()
            changed |= self._refill()

    def chooser(self, rows: Sequence[Active]) -> Chooser:
        return Chooser([row.request for row in rows], self.target.device)

    def _refill(self) -> bool:
        """Admits until the rows are full or none waits: a request may end with its first token."""
        changed = False
        while newcomers := self.batch.admit():
            self._prefill(newcomers)
            self._retire()
            changed = True
        return changed

    def _prefill(self, newcomers: list[Active]) -> None:
        first_row = len(self.batch.active) - len(newcomers)
        ids = [row.request.token_ids for row in newcomers]
        prompts = Prompts.of(ids, first_row, self.target.dtype, self.target.device)
        logits, features = self.target.prefill(prompts)
        next_positions = prompts.positions[:, -1:] + 1
        first = self.chooser(newcomers)(logits[:, None], next_positions)[:, 0]
        tokens = first.tolist()
        now = self.batch.now()
        for row, token, length in zip(newcomers, tokens, prompts.lengths, strict=True):
            row.length = length
            row.first_token_s = now
            row.emit([token], now)
        self.admitted(prompts, features, first)

    def _retire(self) -> bool:
        before = len(self.batch.active)
        for move in self.batch.retire():
            self.target.move(move.source, move.target, move.length)
            self.moved(move)
        return len(self.batch.active) != before
