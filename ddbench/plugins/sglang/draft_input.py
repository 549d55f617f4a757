"""What a sequence carries from round to round, with cache slots for the wider of tree and block."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from torch import Tensor

from ddbench.plugins.sglang.options import Sizes


class DDTreeDraftInput(DFlashDraftInputV2):  # type: ignore[misc]
    """SGLang reserves two verify windows a request; a block that is wider than the tree needs as much."""

    def prepare_for_decode(self, batch: Any) -> None:
        spec = get_spec()
        window = _window(
            spec.speculative_num_draft_tokens, spec.speculative_dflash_block_size, spec.speculative_eagle_topk
        )
        if window == spec.speculative_num_draft_tokens:
            super().prepare_for_decode(batch)
            return
        with spec.override(speculative_num_draft_tokens=window):
            super().prepare_for_decode(batch)

    @classmethod
    def of(cls, bonus_tokens: Tensor, new_seq_lens: Tensor) -> DDTreeDraftInput:
        """As SGLang's `make_draft_input_v2`: the fields of EAGLE's kind are empty."""
        topk_p, topk_index, hidden = _empty(new_seq_lens.numel(), bonus_tokens.device)
        return cls(
            topk_p=topk_p,
            topk_index=topk_index,
            bonus_tokens=bonus_tokens.to(torch.int64),
            new_seq_lens=new_seq_lens.to(torch.int64),
            hidden_states=hidden,
        )


@cache
def _window(verify_width: int, block: int, top_k: int) -> int:
    """A server has one such triple, and asks every round."""
    return Sizes(verify_width, block, top_k).window


@cache
def _empty(rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, indices and hidden states of nothing, ``[rows, 0]``: nobody can write to them."""
    kinds = (torch.float32, torch.int64, torch.float16)
    first, second, third = (torch.empty((rows, 0), dtype=kind, device=device) for kind in kinds)
    return first, second, third
