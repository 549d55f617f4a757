"""What the target's pass is told about the trees that it verifies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from torch import Tensor


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):  # type: ignore[misc]
    """SGLang's verify input of a DFlash round, with a mask and links, by the names that its backends look up.

    ``custom_mask`` is never None: a pass without it would be causal. Where it is ``in_place``, the backend's plan is
    given none, since that would overwrite it (`masks.Place`). Links as in `kernels.buffers.Trees`.
    """

    custom_mask: Tensor | None = None
    retrieve_next_token: Tensor | None = None
    retrieve_next_sibling: Tensor | None = None
    max_tree_depth: int = 1
    tree_topk: int = -1  # an irregular tree, as SGLang's NGRAM names it
    in_place: bool = False

    def generate_attn_arg_prefill(self, *args: Any, **kwargs: Any) -> Any:
        """What FlashInfer's plan is made of: SGLang's own, without the mask that its buffers have already."""
        if not self.in_place:
            return super().generate_attn_arg_prefill(*args, **kwargs)
        mask, self.custom_mask = self.custom_mask, None
        try:
            return super().generate_attn_arg_prefill(*args, **kwargs)
        finally:
            self.custom_mask = mask


def verify_input(width: int, top_k: int, mask: Tensor | None, **tree: Any) -> DDTreeVerifyInput:
    """For ``width`` tokens a sequence; without ``tree``, the made-up one of a graph's capture. Raises RuntimeError."""
    if mask is None:
        raise RuntimeError("ddbench: a DDTree pass was prepared without its mask")
    shape: dict[str, Any] = {"draft_token": None, "positions": None} | tree
    return DDTreeVerifyInput(
        draft_token_num=width,
        topk=top_k,
        custom_mask=mask,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        **shape,
    )
