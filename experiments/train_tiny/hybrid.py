"""A tiny hybrid target: gated delta net and full attention, in the Qwen3.5 text architecture of transformers."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers import PreTrainedModel, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from ddbench.errors import ConfigError
from experiments.train_tiny.config import HybridConfig, TargetConfig

STEP_RANGE = (0.001, 0.1)  # of the delta net's time step at the start


def layer_kinds(layers: int, interval: int) -> list[str]:
    return ["full_attention" if (layer + 1) % interval == 0 else "linear_attention" for layer in range(layers)]


def new_hybrid(
    config: TargetConfig, hybrid: HybridConfig, vocab_size: int, end_id: int, pad_id: int
) -> Qwen3_5ForCausalLM:
    """An untrained hybrid target.

    Raises:
        ConfigError: an interval that leaves only one kind of layer, or value heads that key heads do not divide.
    """
    if not 2 <= hybrid.interval <= config.layers:
        raise ConfigError("train_tiny.target.hybrid.interval", hybrid.interval, f"2 to {config.layers} (target.layers)")
    if hybrid.value_heads % hybrid.key_heads:
        allowed = f"a multiple of key_heads ({hybrid.key_heads})"
        raise ConfigError("train_tiny.target.hybrid.value_heads", hybrid.value_heads, allowed)
    settings = Qwen3_5TextConfig(
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": hybrid.rotary_share,
        },
        layer_types=layer_kinds(config.layers, hybrid.interval),
        full_attention_interval=hybrid.interval,  # engines read the kinds of the layers from it
        linear_num_key_heads=hybrid.key_heads,
        linear_num_value_heads=hybrid.value_heads,
        linear_key_head_dim=hybrid.head_dim,
        linear_value_head_dim=hybrid.head_dim,
        linear_conv_kernel_dim=hybrid.conv_kernel,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
        attn_implementation="sdpa",
    )
    model = Qwen3_5ForCausalLM(settings)
    start_delta_nets(model)
    return model


@torch.no_grad()
def start_delta_nets(model: PreTrainedModel) -> None:
    """First values that let a delta net remember: time steps drawn log-uniformly, as Mamba-2 does (Dao & Gu 2024).

    The convolution begins near "this token alone", so that keys and queries have the size that the norms expect.
    """
    low, high = (math.log(edge) for edge in STEP_RANGE)
    for module in delta_nets(model):
        step = torch.empty_like(module.dt_bias).uniform_(low, high).exp()
        module.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
        module.A_log.copy_(torch.empty_like(module.A_log).uniform_(1.0, 16.0).log())
        module.conv1d.weight[:, :, -1] += 1.0


def delta_nets(model: PreTrainedModel) -> list[nn.Module]:
    """The gated delta nets of a model, in the order of its layers."""
    return [layer.linear_attn for layer in model.base_model.layers if hasattr(layer, "linear_attn")]
