"""The DFlash block-diffusion drafter: a whole block of tokens from one non-causal pass over the target's features.

Source: DFlash paper §3 and appendix A.3 (feature injection), and the checkpoint layout its authors publish
(``DFlashDraftModel``): ``fc``, ``hidden_norm``, ``norm``, ``layers.N.*``; the target's embedding and head are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddbench.drafters.attention import FeedForward, KeyValue, LayerDims, Rotary, apply_rope, attend, split_heads


@dataclass(frozen=True)
class DFlashConfig:
    """What a DFlash ``config.json`` says. ``block_size`` counts the anchor: ``block_size - 1`` are drafted."""

    dims: LayerDims
    num_layers: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]  # taps: the outputs of these target layers, 0-based
    num_target_layers: int | None
    vocab_size: int
    attention_bias: bool
    raw: Mapping[str, Any]

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> DFlashConfig:
        """Reads the published layout; ``dflash_config.block_size`` wins over the top-level key.

        Raises:
            KeyError: a key that the layout requires is missing.
        """
        special = config["dflash_config"]
        return cls(
            dims=LayerDims.from_json(config),
            num_layers=int(config["num_hidden_layers"]),
            block_size=int(special["block_size"] if special.get("block_size") else config["block_size"]),
            mask_token_id=int(special["mask_token_id"]),
            target_layer_ids=tuple(int(layer) for layer in special["target_layer_ids"]),
            num_target_layers=config.get("num_target_layers"),
            vocab_size=int(config["vocab_size"]),
            attention_bias=bool(config.get("attention_bias", False)),
            raw=config,
        )

    @property
    def max_depth(self) -> int:
        return self.block_size - 1

    @property
    def hidden_size(self) -> int:
        return self.dims.hidden_size


class DFlashAttention(nn.Module):
    """Queries from the block; keys and values from features and block; keys and queries normed per head."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        dims, bias = config.dims, config.attention_bias
        self.dims = dims
        self.q_proj = nn.Linear(dims.hidden_size, dims.num_heads * dims.head_dim, bias=bias)
        self.k_proj = nn.Linear(dims.hidden_size, dims.num_kv_heads * dims.head_dim, bias=bias)
        self.v_proj = nn.Linear(dims.hidden_size, dims.num_kv_heads * dims.head_dim, bias=bias)
        self.o_proj = nn.Linear(dims.num_heads * dims.head_dim, dims.hidden_size, bias=bias)
        self.q_norm = nn.RMSNorm(dims.head_dim, eps=dims.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dims.head_dim, eps=dims.rms_norm_eps)

    def key_value(self, x: Tensor, cos: Tensor, sin: Tensor) -> KeyValue:
        key = self.k_norm(split_heads(self.k_proj(x), self.dims.num_kv_heads))
        return apply_rope(key, cos, sin), split_heads(self.v_proj(x), self.dims.num_kv_heads)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, context: KeyValue, mask: Tensor | None) -> Tensor:
        query = apply_rope(self.q_norm(split_heads(self.q_proj(x), self.dims.num_heads)), cos, sin)
        key, value = self.key_value(x, cos, sin)
        key, value = torch.cat((context[0], key), dim=2), torch.cat((context[1], value), dim=2)
        out: Tensor = self.o_proj(attend(query, key, value, mask))
        return out


class DFlashLayer(nn.Module):
    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        dims = config.dims
        self.self_attn = DFlashAttention(config)
        self.mlp = FeedForward(dims)
        self.input_layernorm = nn.RMSNorm(dims.hidden_size, eps=dims.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(dims.hidden_size, eps=dims.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, context: KeyValue, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, context, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class DFlashDrafter(nn.Module):
    """DFlash in PyTorch; parameter names are those of the published checkpoints.

    A round: ``project_features`` and ``context_kv`` turn the target's features at newly committed positions into
    drafter keys and values, which are kept; ``forward`` runs the block ``[bonus, MASK, ...]`` over them. Row ``i >= 1``
    of the result, through the target's head, is the distribution of the token ``i`` places after the bonus token. The
    block's own keys and values are never kept.
    """

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        dims = config.dims
        self.fc = nn.Linear(len(config.target_layer_ids) * dims.hidden_size, dims.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(dims.hidden_size, eps=dims.rms_norm_eps)
        self.layers = nn.ModuleList(DFlashLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(dims.hidden_size, eps=dims.rms_norm_eps)
        self.rotary = Rotary(config.raw)

    def project_features(self, features: Tensor) -> Tensor:
        """Concatenated taps [batch, tokens, taps * hidden] to the drafter's context [batch, tokens, hidden]."""
        out: Tensor = self.hidden_norm(self.fc(features))
        return out

    def context_kv(self, context: Tensor, positions: Tensor) -> list[KeyValue]:
        """Keys (normed, rotated) and values of every layer for ``context`` [batch, tokens, hidden] at ``positions``."""
        cos, sin = self.rotary(context, positions)
        return [layer.self_attn.key_value(context, cos, sin) for layer in self._layers()]

    def forward(
        self, block_embeds: Tensor, positions: Tensor, context: Sequence[KeyValue], mask: Tensor | None = None
    ) -> Tensor:
        """Final hidden rows [batch, block, hidden] of a block.

        Args:
            block_embeds: target embeddings of ``[bonus, MASK, ...]``, [batch, block, hidden].
            positions: absolute positions of the block, [batch, block].
            context: per layer keys and values of the committed positions, each [batch, kv_heads, context, head_dim].
            mask: boolean or additive over ``context + block`` keys; None sees all of them. The block is not causal.
        """
        x = block_embeds
        cos, sin = self.rotary(x, positions)
        for layer, key_value in zip(self._layers(), context, strict=True):
            x = layer(x, cos, sin, key_value, mask)
        out: Tensor = self.norm(x)
        return out

    def _layers(self) -> list[DFlashLayer]:
        return [layer for layer in self.layers if isinstance(layer, DFlashLayer)]
