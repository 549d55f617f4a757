"""The target's hidden states at the drafters' taps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel


@torch.no_grad()
def tapped_states(model: PreTrainedModel, tokens: Tensor, state_indices: Sequence[int]) -> Tensor:
    """Concatenated ``hidden_states[i]`` for the given indices, [rows, length, taps * hidden].

    ``hidden_states[0]`` is the embedding and ``hidden_states[l + 1]`` the output of layer ``l``.
    """
    states = model.base_model(input_ids=tokens, use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[index] for index in state_indices], dim=-1)
