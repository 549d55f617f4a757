"""What a sequence carries from round to round, with cache slots for the wider of tree and block."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2
from torch import Tensor

from ddbench.plugins.sglang.options import Sizes


class DDTreeDraftInput(DFlashDraftInputV2):  # type: ignore[misc]
    """SGLang reserves two verify windows a request; a block that is wider than the tree needs as much."""

    def prepare_for_decode(self, batch: Any) -> None:
        sizes = Sizes.of(get_spec())
        if sizes.window == sizes.verify_width:
            super().prepare_for_decode(batch)
            return
        with get_spec().override(speculative_num_draft_tokens=sizes.window):
            super().prepare_for_decode(batch)

    @classmethod
    def of(cls, bonus_tokens: Tensor, new_seq_lens: Tensor) -> DDTreeDraftInput:
        """As SGLang's `make_draft_input_v2`: the fields of EAGLE's kind are empty."""
        rows, device = new_seq_lens.numel(), bonus_tokens.device
        return cls(
            topk_p=torch.empty((rows, 0), dtype=torch.float32, device=device),
            topk_index=torch.empty((rows, 0), dtype=torch.int64, device=device),
            bonus_tokens=bonus_tokens.to(torch.int64),
            new_seq_lens=new_seq_lens.to(torch.int64),
            hidden_states=torch.empty((rows, 0), dtype=torch.float16, device=device),
        )
