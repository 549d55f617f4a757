"""A hybrid pair of random weights, written on the spot: gated delta nets with full attention, and a DFlash drafter.

Random weights accept nearly nothing of a random drafter; the trees of a proof are planted (`hybrid_inside`). Scales are
such that outputs have some variety, and that a state remembers: the decay of a delta net is about 0.85 a token, where
the customary initial values would forget all but the last token, and a wrong state would hardly be seen.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

Family = Literal["qwen3_5", "qwen3_next"]

BLOCK, MASK = 16, 1
LAYERS, INTERVAL, HIDDEN, WORDS = 8, 4, 256, 512
HEADS, KV_HEADS, HEAD, ROTARY = 4, 2, 64, 0.25
KEY_HEADS, VALUE_HEADS, STATE, KERNEL = 2, 4, 128, 4
MIDDLE, EXPERTS, EXPERT_MIDDLE, SHARED_MIDDLE = 512, 4, 128, 256
DRAFT_LAYERS, TAPS = 2, [1, 3, 5, 6]
HEAD_GAIN = 2.0  # standard deviation of logits
BRANCH_GAIN = 0.7  # of what a layer adds to the residual stream
CONTEXT = 2048

SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": HIDDEN,
    "intermediate_size": MIDDLE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 2,
}
DELTA: dict[str, Any] = {
    "full_attention_interval": INTERVAL,
    "layer_types": ["full_attention" if (i + 1) % INTERVAL == 0 else "linear_attention" for i in range(LAYERS)],
    "linear_conv_kernel_dim": KERNEL,
    "linear_key_head_dim": STATE,
    "linear_value_head_dim": STATE,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "partial_rotary_factor": ROTARY,
}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": ROTARY}
VISION: dict[str, Any] = {  # SGLang serves Qwen3.5 as the model that also sees; nothing is ever shown to this one
    "model_type": "qwen3_5",
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 1,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
    "hidden_act": "gelu_pytorch_tanh",
    "initializer_range": 0.02,
}


@dataclass(frozen=True)
class Writer:
    """Random weights of a seed, float32 in memory and ``dtype`` on disk."""

    generator: torch.Generator
    dtype: torch.dtype

    def matrix(self, out: int, into: int, gain: float = 1.0) -> Tensor:
        return torch.randn(out, into, generator=self.generator).mul_(gain / math.sqrt(into)).to(self.dtype)

    def vector(self, size: int, mean: float, spread: float) -> Tensor:
        return (mean + spread * torch.randn(size, generator=self.generator)).to(self.dtype)

    def between(self, size: int, low: float, high: float) -> Tensor:
        return torch.rand(size, generator=self.generator).mul_(high - low).add_(low)


def write_pair(folder: Path, family: Family, dtype: str, seed: int = 1) -> None:
    """Makes ``folder/target`` and ``folder/dflash``."""
    writer = Writer(torch.Generator("cpu").manual_seed(seed), getattr(torch, dtype))
    _write(folder / "target", _target_config(family, dtype), _target_weights(family, writer))
    _write(folder / "dflash", _drafter_config(dtype), _drafter_weights(writer))


def seen_by_sglang(target: Path, folder: Path) -> Path:
    """A copy of a Qwen3.5 text model in the form in which SGLang knows the family: with a part that sees.

    The weights are linked to. A folder of another family is given back as it is.
    """
    config = json.loads((target / "config.json").read_text())
    if config["model_type"] != "qwen3_5_text":
        return target
    folder.mkdir(parents=True, exist_ok=True)
    for file in target.iterdir():
        link = folder / file.name
        if file.name != "config.json" and not link.exists():
            link.symlink_to(file.resolve())
    vision = VISION | {"out_hidden_size": config["hidden_size"]}
    (folder / "config.json").write_text(json.dumps(_wrapped(config, vision), indent=1))
    return folder


def _wrapped(text: dict[str, Any], vision: dict[str, Any]) -> dict[str, Any]:
    inner = {name: value for name, value in text.items() if name != "architectures"}
    inner.setdefault("full_attention_interval", text["layer_types"].index("full_attention") + 1)
    inner.setdefault("partial_rotary_factor", text["rope_parameters"].get("partial_rotary_factor", 1.0))
    inner.setdefault("rope_theta", text["rope_parameters"].get("rope_theta", 10_000.0))
    dtype = text.get("dtype") or text.get("torch_dtype") or "bfloat16"
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "torch_dtype": dtype,
        "dtype": dtype,
        "text_config": inner,
        "vision_config": vision,
        "eos_token_id": text.get("eos_token_id"),
        # no token of the vocabulary stands for an image
        **{f"{name}_token_id": -1 for name in ("image", "video", "vision_start", "vision_end")},
    }


def _target_config(family: Family, dtype: str) -> dict[str, Any]:
    if family == "qwen3_5":
        half = int(HEAD * ROTARY) // 2
        rope = ROPE | {"mrope_section": [half - 2 * (half // 4), half // 4, half // 4], "mrope_interleaved": True}
        text = SHAPE | DELTA | {"model_type": "qwen3_5_text", "rope_parameters": rope, "dtype": dtype}
        return _wrapped(text, VISION)
    mixture = {
        "num_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS,  # all of them, so that no rounding sends a token to other ones
        "moe_intermediate_size": EXPERT_MIDDLE,
        "shared_expert_intermediate_size": SHARED_MIDDLE,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    }
    own = {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "rope_theta": 10_000.0}
    return SHAPE | DELTA | mixture | own | {"rope_scaling": None, "torch_dtype": dtype, "dtype": dtype}


def _target_weights(family: Family, writer: Writer) -> dict[str, Tensor]:
    found = {
        "model.embed_tokens.weight": writer.matrix(WORDS, HIDDEN, math.sqrt(HIDDEN)),
        "model.norm.weight": writer.vector(HIDDEN, 0.0, 0.1),  # a norm of Qwen3-Next and Qwen3.5 scales by 1 + weight
        "lm_head.weight": writer.matrix(WORDS, HIDDEN, HEAD_GAIN),
    }
    for layer, kind in enumerate(DELTA["layer_types"]):
        here = f"model.layers.{layer}."
        part = _attention(writer, 2) if kind == "full_attention" else _delta_net(family, writer)
        part |= {
            "input_layernorm.weight": writer.vector(HIDDEN, 0.0, 0.1),
            "post_attention_layernorm.weight": writer.vector(HIDDEN, 0.0, 0.1),
        }
        part |= _mlp(writer, "mlp.", MIDDLE) if family == "qwen3_5" else _mixture(writer)
        found |= {here + name: tensor for name, tensor in part.items()}
    return found


def _attention(writer: Writer, queries: int, norm: float = 0.0) -> dict[str, Tensor]:
    """``queries`` 2: every head has a gate beside its query."""
    rows = {"q_proj": queries * HEADS * HEAD, "k_proj": KV_HEADS * HEAD, "v_proj": KV_HEADS * HEAD}
    found = {f"self_attn.{name}.weight": writer.matrix(size, HIDDEN) for name, size in rows.items()}
    found["self_attn.o_proj.weight"] = writer.matrix(HIDDEN, HEADS * HEAD, BRANCH_GAIN)
    return found | {f"self_attn.{name}_norm.weight": writer.vector(HEAD, norm, 0.1) for name in "qk"}


def _delta_net(family: Family, writer: Writer) -> dict[str, Tensor]:
    keys, values = KEY_HEADS * STATE, VALUE_HEADS * STATE
    if family == "qwen3_5":
        rows = {
            "in_proj_qkv": 2 * keys + values,
            "in_proj_z": values,
            "in_proj_b": VALUE_HEADS,
            "in_proj_a": VALUE_HEADS,
        }
    else:
        rows = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * VALUE_HEADS}
    found = {f"{name}.weight": writer.matrix(size, HIDDEN) for name, size in rows.items()} | {
        "conv1d.weight": writer.matrix(2 * keys + values, KERNEL).mul_(1.5)[:, None, :].contiguous(),
        "A_log": writer.between(VALUE_HEADS, -1.5, 0.0),
        "dt_bias": writer.between(VALUE_HEADS, -2.5, -0.5).to(writer.dtype),
        "norm.weight": writer.vector(STATE, 1.0, 0.1),
        "out_proj.weight": writer.matrix(HIDDEN, values, BRANCH_GAIN),
    }
    return {f"linear_attn.{name}": tensor for name, tensor in found.items()}


def _mlp(writer: Writer, prefix: str, middle: int) -> dict[str, Tensor]:
    found = {f"{prefix}{name}_proj.weight": writer.matrix(middle, HIDDEN) for name in ("gate", "up")}
    return found | {f"{prefix}down_proj.weight": writer.matrix(HIDDEN, middle, BRANCH_GAIN)}


def _mixture(writer: Writer) -> dict[str, Tensor]:
    found = {
        "mlp.gate.weight": writer.matrix(EXPERTS, HIDDEN),
        "mlp.shared_expert_gate.weight": writer.matrix(1, HIDDEN),
    }
    for expert in range(EXPERTS):
        found |= _mlp(writer, f"mlp.experts.{expert}.", EXPERT_MIDDLE)
    return found | _mlp(writer, "mlp.shared_expert.", SHARED_MIDDLE)


def _drafter_config(dtype: str) -> dict[str, Any]:
    own = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": DRAFT_LAYERS,
        "max_window_layers": DRAFT_LAYERS,
        "layer_types": ["full_attention"] * DRAFT_LAYERS,
        "rope_theta": 10_000.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "num_target_layers": LAYERS,
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS},
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    return SHAPE | own


def _drafter_weights(writer: Writer) -> dict[str, Tensor]:
    found = {
        "fc.weight": writer.matrix(HIDDEN, len(TAPS) * HIDDEN),
        "hidden_norm.weight": writer.vector(HIDDEN, 1.0, 0.1),
        "norm.weight": writer.vector(HIDDEN, 1.0, 0.1),
    }
    for layer in range(DRAFT_LAYERS):
        part = _attention(writer, 1, norm=1.0) | _mlp(writer, "mlp.", MIDDLE)
        part |= {f"{name}_layernorm.weight": writer.vector(HIDDEN, 1.0, 0.1) for name in ("input", "post_attention")}
        found |= {f"layers.{layer}.{name}": tensor for name, tensor in part.items()}
    return found


def _write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
