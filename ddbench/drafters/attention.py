"""What both drafters share: rotary positions, the feed-forward block, attention over a context and new rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

KeyValue = tuple[Tensor, Tensor]  # keys and values, each [batch, kv_heads, tokens, head_dim]


@dataclass(frozen=True)
class LayerDims:
    """The dimensions of one decoder layer, read from a checkpoint's ``config.json``."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> LayerDims:
        heads = int(config["num_attention_heads"])
        return cls(
            hidden_size=int(config["hidden_size"]),
            intermediate_size=int(config["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        )


class Rotary(nn.Module):
    """Rotary tables with the frequencies of a Hugging Face config, scaled kinds (llama3, yarn, ...) included."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        keys = (
            "head_dim",
            "hidden_size",
            "num_attention_heads",
            "max_position_embeddings",
            "rope_theta",
            "rope_scaling",
            "rope_parameters",
        )
        chosen = {key: config[key] for key in keys if config.get(key) is not None}
        self.tables = LlamaRotaryEmbedding(LlamaConfig(**chosen))

    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [batch, 1, tokens, head_dim] at ``positions`` [batch, tokens], in the dtype of ``like``."""
        cos, sin = self.tables(like, positions)
        return cos.unsqueeze(1), sin.unsqueeze(1)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates ``x`` [batch, heads, tokens, head_dim] by :class:`Rotary` tables, halves paired (the Llama layout)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[batch, tokens, heads * head_dim] to [batch, heads, tokens, head_dim]."""
    batch, tokens, _ = x.shape
    return x.view(batch, tokens, heads, -1).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention, heads merged: [batch, tokens, heads * head_dim].

    ``mask`` is boolean (True = visible) or additive, broadcastable to [batch, heads, tokens, keys]; None sees all.
    """
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and mask is not None and query.is_cuda:
        # CUDA's memory-efficient kernel takes a mask but no groups; without this the slow unfused path runs.
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        groups = 1
    out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=groups > 1)
    return out.transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """The gated SiLU feed-forward block of Llama and Qwen3 layers."""

    def __init__(self, dims: LayerDims) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims.hidden_size, dims.intermediate_size, bias=False)
        self.up_proj = nn.Linear(dims.hidden_size, dims.intermediate_size, bias=False)
        self.down_proj = nn.Linear(dims.intermediate_size, dims.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
