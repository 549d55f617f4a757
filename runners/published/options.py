"""What the published implementation is told beside the models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Attention = Literal["sdpa", "flash_attention_2"]


@dataclass(frozen=True)
class PublishedOptions:
    """``checkout``: folder with its source. ``drafter_attention``: what the drafter attends by; the target's is sdpa,
    since a tree needs a mask. ``compiled_compaction``: its C++ extension that compacts the cache is built when it
    loads (it goes on without where that fails)."""

    checkout: str
    drafter_attention: Attention
    compiled_compaction: bool
