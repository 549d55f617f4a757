"""A made-up target with a recurrent state for the rounds of `sgl_round`: what it says next follows from its whole path.

Each place has three candidates, and the state says which of them is next. States of a window are found as SGLang's
kernels find them, from the links of the verify input, and kept for every entry; the sequence's own state changes with
SGLang's commit alone.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sgl_round import BLOCK, HIDDEN, ROWS, VOCABULARY, Drafter, Target
from torch import Tensor

RANKS = (0, 0, 0, 1, 1, 2)  # of the candidate, by the state's remainder
MODULUS = 65_521


def candidates(position: int) -> list[int]:
    """Three tokens that may stand at a position, the likeliest first."""
    return [(position * 11 + 5) % VOCABULARY, (position * 11 + 43) % VOCABULARY, (position * 11 + 71) % VOCABULARY]


def after(state: int, token: int) -> int:
    return (state * 31 + token * 7 + 1) % MODULUS


def said(state: int, position: int) -> int:
    """The token at ``position`` after a state."""
    return candidates(position)[RANKS[state % len(RANKS)]]


def parents_of(first_child: list[int], next_sibling: list[int]) -> list[int]:
    """As SGLang's convolution kernel derives them: in order, a child of its parent or the sibling of an earlier one."""
    parents = [0] * len(first_child)
    for entry, (child, sibling) in enumerate(zip(first_child, next_sibling, strict=True)):
        if child != -1:
            parents[child] = entry
        if sibling != -1:
            parents[sibling] = parents[entry]
    return parents


class RecurrentTarget(Target):
    """``states`` by row of the slot table. ``star``: recurrent layers see all entries as the root's children."""

    star = False

    def __init__(self, runner: Any, width: int) -> None:
        super().__init__(runner, width)
        self.states = torch.zeros(ROWS, dtype=torch.int64)
        self.kept = torch.zeros(0, width, dtype=torch.int64)

    def forward_batch_generation(self, batch: Any, forward_batch: Any, **told: Any) -> Any:
        found = super().forward_batch_generation(batch, forward_batch, **told)
        tokens, spec = forward_batch.input_ids.view(-1, self.width), forward_batch.spec_info
        positions = forward_batch.positions.view(-1, self.width)
        self.kept = torch.zeros_like(tokens)
        logits = torch.full((*tokens.shape, VOCABULARY), -5.0)
        for row, pool in enumerate(forward_batch.req_pool_indices.tolist()):
            links = (spec.retrieve_next_token[row].tolist(), spec.retrieve_next_sibling[row].tolist())
            parents = [0] * self.width if self.star else parents_of(*links)
            for entry, token in enumerate(tokens[row].tolist()):
                begin = int(self.states[pool]) if entry == 0 else int(self.kept[row, parents[entry]])
                self.kept[row, entry] = after(begin, token)
                place = int(positions[row, entry]) + 1
                logits[row, entry, said(int(self.kept[row, entry]), place)] = 5.0
        found.logits_output.next_token_logits = logits.view(-1, VOCABULARY)
        return found

    def commit(
        self, target_worker: Any, batch: Any, accept_lens: Tensor, accept_index: Tensor, draft_token_num: int
    ) -> None:
        """As SGLang's: its own choice of the entry, on the states that the last pass kept."""
        from sglang.srt.speculative.spec_utils import _verify_commit_step_indices

        steps, _ = _verify_commit_step_indices(
            batch=batch, accept_index=accept_index, accept_lens=accept_lens, draft_token_num=draft_token_num
        )
        rows = torch.arange(len(steps))
        self.states[batch.req_pool_indices] = self.kept[rows, steps.long()]


class PlaceDrafter(Drafter):
    """Offers each place's candidates."""

    def forward(self, forward_batch: Any) -> Any:
        positions = forward_batch.positions.view(-1, BLOCK)
        hidden = torch.zeros(*positions.shape, HIDDEN)
        for row, first in enumerate(positions[:, 0].tolist()):
            for place in range(1, BLOCK):
                logits = torch.full((VOCABULARY,), -5.0)
                logits[candidates(first + place)] = torch.tensor([4.0, 3.4, 2.6])
                hidden[row, place] = logits @ self.inverse
        return SimpleNamespace(
            logits_output=SimpleNamespace(hidden_states=hidden.view(-1, HIDDEN)), can_run_graph=False
        )
