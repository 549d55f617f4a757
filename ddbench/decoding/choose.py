"""The target's choice of a token: argmax at temperature 0, else a draw that depends on prompt, seed and position alone.

Every strategy draws the token of a position with the same uniform from the same law, so all emit the same text; a tree
only decides how many of those draws one verify pass yields (sample and match).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddbench.decoding.api import Request
from ddbench.tree import draw, filtered_probs, keyed_uniforms


class Chooser:
    """Chooses tokens for a fixed list of requests, one a row."""

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        sampling = [request.sampling for request in requests]
        self._all_greedy = all(each.temperature == 0 for each in sampling)
        if self._all_greedy:
            return
        self._temperature = torch.tensor([each.temperature for each in sampling], device=device)
        # Plain numbers where all agree: what is off for all then costs no sort.
        self._top_p = _shared([each.top_p for each in sampling], device)
        self._top_k = _shared([each.top_k for each in sampling], device)
        self._seed = torch.tensor([request.draw_seed for request in requests], device=device)

    def __call__(self, logits: Tensor, positions: Tensor) -> Tensor:
        """Chosen ids [rows, tokens] from ``logits`` [rows, tokens, vocab].

        ``positions`` [rows, tokens] are those of the tokens being chosen, one past those of the logits' rows.
        """
        if self._all_greedy:
            return logits.argmax(dim=-1)
        probs = filtered_probs(logits, self._temperature, self._top_p, self._top_k)
        return draw(probs, keyed_uniforms(self._seed, positions))


def _shared(values: Sequence[float], device: torch.device) -> float | Tensor:
    return values[0] if len(set(values)) == 1 else torch.tensor(values, device=device)
