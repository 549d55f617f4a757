"""Sets of local indices as 32-bit words: bit ``j % 32`` of word ``j // 32`` stands for local index j."""

from __future__ import annotations

import torch
from torch import Tensor

from ddbench.plugins.kernels.words import WORD, words_of

__all__ = ["WORD", "pack_bits", "unpack_bits", "words_of"]


def pack_bits(mask: Tensor) -> Tensor:
    """bool ``[..., W]`` as int32 words ``[..., words]``."""
    width = mask.shape[-1]
    words = words_of(width)
    padded = torch.nn.functional.pad(mask, (0, words * WORD - width)).view(*mask.shape[:-1], words, WORD)
    weights = torch.ones(WORD, dtype=torch.int64, device=mask.device) << torch.arange(WORD, device=mask.device)
    packed: Tensor = (padded.long() * weights).sum(-1)
    return packed.to(torch.int32)  # wraps: bit 31 is the sign


def unpack_bits(words: Tensor, width: int) -> Tensor:
    """The inverse of `pack_bits`: bool ``[..., width]``."""
    local = torch.arange(width, device=words.device)
    return ((words[..., local // WORD] >> (local % WORD).to(torch.int32)) & 1).bool()
