"""The EAGLE-3 drafter: one decoder layer that goes on from fused target features, a token at a time.

Source: EAGLE-3 paper §3.1; checkpoint layout that SGLang and vLLM load (``LlamaForCausalLMEagle3``): ``fc``,
``midlayer.*`` with queries, keys and values over [embedding, feature], ``norm``, ``lm_head`` over a draft vocabulary
and ``d2t`` / ``t2d`` between the two vocabularies. Token embeddings are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddbench.drafters.attention import FeedForward, KeyValue, LayerDims, Rotary, apply_rope, attend, split_heads


@dataclass(frozen=True)
class Eagle3Config:
    """What an EAGLE-3 ``config.json`` says. ``aux_layer_ids``: the inputs of these target layers are the features.

    vLLM reads explicit ids so; SGLang adds 1 to them (``set_eagle3_layers_to_capture`` of its Qwen3 and Llama models).
    A checkpoint written for SGLang with explicit ids needs each of them one higher here.
    """

    dims: LayerDims
    aux_layer_ids: tuple[int, ...] | None  # None: the engines' default for the target's depth
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    attention_bias: bool
    raw: Mapping[str, Any]

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Eagle3Config:
        special = config.get("eagle_config") or {}
        layers = special.get("eagle_aux_hidden_state_layer_ids") or config.get("eagle_aux_hidden_state_layer_ids")
        vocab = int(config["vocab_size"])
        return cls(
            dims=LayerDims.from_json(config),
            aux_layer_ids=tuple(int(layer) for layer in layers) if layers else None,
            target_hidden_size=int(config.get("target_hidden_size") or config["hidden_size"]),
            vocab_size=vocab,
            draft_vocab_size=int(config.get("draft_vocab_size") or vocab),
            attention_bias=bool(config.get("attention_bias", False)),
            raw=config,
        )

    def taps(self, num_target_layers: int) -> tuple[int, ...]:
        """Target layers whose inputs are tapped; default: layer 2, the middle one and the third from the end, as in
        SGLang and vLLM."""
        if self.aux_layer_ids is not None:
            return self.aux_layer_ids
        return (2, num_target_layers // 2, num_target_layers - 3)


class Eagle3Attention(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        dims, bias = config.dims, config.attention_bias
        self.dims = dims
        self.q_proj = nn.Linear(2 * dims.hidden_size, dims.num_heads * dims.head_dim, bias=bias)
        self.k_proj = nn.Linear(2 * dims.hidden_size, dims.num_kv_heads * dims.head_dim, bias=bias)
        self.v_proj = nn.Linear(2 * dims.hidden_size, dims.num_kv_heads * dims.head_dim, bias=bias)
        self.o_proj = nn.Linear(dims.num_heads * dims.head_dim, dims.hidden_size, bias=bias)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries, rotated keys and values of ``x`` [batch, tokens, 2 * hidden]."""
        query = apply_rope(split_heads(self.q_proj(x), self.dims.num_heads), cos, sin)
        key = apply_rope(split_heads(self.k_proj(x), self.dims.num_kv_heads), cos, sin)
        return query, key, split_heads(self.v_proj(x), self.dims.num_kv_heads)


class Eagle3Layer(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        dims = config.dims
        self.self_attn = Eagle3Attention(config)
        self.mlp = FeedForward(dims)
        self.input_layernorm = nn.RMSNorm(dims.hidden_size, eps=dims.rms_norm_eps)  # of the token embedding
        self.hidden_norm = nn.RMSNorm(dims.hidden_size, eps=dims.rms_norm_eps)  # of the feature
        self.post_attention_layernorm = nn.RMSNorm(dims.hidden_size, eps=dims.rms_norm_eps)

    def attention_input(self, token_embeds: Tensor, feature: Tensor) -> Tensor:
        return torch.cat((self.input_layernorm(token_embeds), self.hidden_norm(feature)), dim=-1)

    def finish(self, feature: Tensor, attended: Tensor) -> Tensor:
        """Output projection, residual over the feature and feed-forward: the hidden rows before the final norm."""
        x = feature + self.self_attn.o_proj(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Eagle3Drafter(nn.Module):
    """EAGLE-3 in PyTorch; parameter names are those of the published checkpoints.

    Row ``t`` joins the embedding of token ``t + 1`` with the feature of position ``t`` and predicts token ``t + 2``.
    For committed positions the feature is ``project_features`` of the target's taps; while drafting it is the hidden
    row the drafter itself gave for the parent node.
    """

    d2t: Tensor | None

    def __init__(self, config: Eagle3Config, *, reduced_vocabulary: bool | None = None) -> None:
        super().__init__()
        self.config = config
        dims = config.dims
        self.fc = nn.Linear(3 * config.target_hidden_size, dims.hidden_size, bias=False)
        self.midlayer = Eagle3Layer(config)
        self.norm = nn.RMSNorm(dims.hidden_size, eps=dims.rms_norm_eps)
        self.lm_head = nn.Linear(dims.hidden_size, config.draft_vocab_size, bias=False)
        self.rotary = Rotary(config.raw)
        reduced = config.draft_vocab_size != config.vocab_size if reduced_vocabulary is None else reduced_vocabulary
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64) if reduced else None)

    def project_features(self, features: Tensor) -> Tensor:
        """Concatenated taps [batch, tokens, 3 * hidden] to features [batch, tokens, hidden]."""
        out: Tensor = self.fc(features)
        return out

    def forward(
        self,
        token_embeds: Tensor,
        feature: Tensor,
        positions: Tensor,
        past: KeyValue | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """One drafter pass over new rows.

        Args:
            token_embeds, feature: [batch, tokens, hidden].
            positions: rotary positions [batch, tokens]; row ``t`` has position ``t``.
            past: keys and values of earlier rows, each [batch, kv_heads, past, head_dim].
            mask: boolean or additive over ``past + tokens`` keys; None sees all of them (right for one new row only).

        Returns:
            Hidden rows before the final norm [batch, tokens, hidden] (the feature of the next step) and the keys and
            values of the new rows alone.
        """
        cos, sin = self.rotary(token_embeds, positions)
        query, key, value = self.midlayer.self_attn.project(
            self.midlayer.attention_input(token_embeds, feature), cos, sin
        )
        keys = key if past is None else torch.cat((past[0], key), dim=2)
        values = value if past is None else torch.cat((past[1], value), dim=2)
        return self.midlayer.finish(feature, attend(query, keys, values, mask)), (key, value)

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [batch, tokens, draft_vocab] of hidden rows."""
        out: Tensor = self.lm_head(self.norm(hidden))
        return out

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft vocabulary ids to target ids; ``d2t`` holds the difference, as published."""
        return draft_ids if self.d2t is None else draft_ids + self.d2t[draft_ids]
