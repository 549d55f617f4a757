"""The baseline: one token of every sequence a step, with nothing of speculation in its way."""

from __future__ import annotations

import torch
from torch import Tensor

from ddbench.decoding.batch import Batch
from ddbench.decoding.kv import Slots, round_up
from ddbench.decoding.loop import Loop
from ddbench.decoding.masks import committed_mask
from ddbench.decoding.target import Target


class AutoregressiveLoop(Loop):
    """Tokens and lengths stay on the device from step to step; the mask grows by one slot a step."""

    def __init__(self, target: Target, batch: Batch) -> None:
        super().__init__(target, batch)
        self._host_lengths: list[int] = []

    @property
    def tokens(self) -> Tensor:
        """The newest token of every row, [rows, 1]."""
        return self._tokens

    def membership_changed(self) -> None:
        device = self.target.device
        rows = self.batch.active
        self._host_lengths = [row.length for row in rows]
        self._lengths = torch.tensor(self._host_lengths, device=device)
        self._tokens = torch.tensor([[row.output[-1]] for row in rows], device=device)
        self._rows = torch.arange(len(rows), device=device)
        self._mask = committed_mask(self._lengths, self.target.cache.length, self.target.dtype)
        self._choose = self.chooser(rows)

    def step(self) -> None:
        kv_len = round_up(max(self._host_lengths) + 1)
        self._mask[self._rows, 0, 0, self._lengths] = 0
        slots = Slots.following(self._host_lengths, self._lengths, 1)
        positions = self._lengths[:, None]
        mask = self._mask[..., :kv_len]
        logits = self.target.forward(self._tokens, positions, mask, slots, kv_len)
        self._lengths = self._lengths + 1
        self._tokens = self._choose(logits, positions + 1)
        chosen = self._tokens.tolist()
        now = self.batch.now()
        for index, (row, tokens) in enumerate(zip(self.batch.active, chosen, strict=True)):
            row.length += 1
            self._host_lengths[index] += 1
            row.emit(tokens, now)
