"""First weights of a hybrid pair, taken from a finished dense pair of the same width.

Layers are dropped and the mixers of most are replaced; what is left knows enough that a short training on the dense
pair's lessons mends it, as DistilBERT (Sanh et al. 2019) begins from every other layer of its teacher and linear
attention can begin from the projections of softmax attention (Wang et al. 2024, "The Mamba in the Llama").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ddbench.drafters.dflash import DFlashDrafter
from ddbench.errors import ConfigError

KEY = "train_tiny.teacher"


@torch.no_grad()
def inherit_target(model: PreTrainedModel, teacher: PreTrainedModel, layers: Sequence[int]) -> None:
    """Layer ``i`` of the hybrid ``model`` starts from layer ``layers[i]`` of the Qwen3 ``teacher``.

    Raises:
        ConfigError: another number of layers, another width, or other attention heads.
    """
    own, other = model.config, teacher.config
    if len(layers) != own.num_hidden_layers or max(layers) >= other.num_hidden_layers:
        allowed = f"{own.num_hidden_layers} layers of the teacher's {other.num_hidden_layers}"
        raise ConfigError(f"{KEY}.layers", list(layers), allowed)
    for name in ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"):
        if getattr(own, name) != getattr(other, name):
            raise ConfigError(f"{KEY}.target", getattr(other, name), f"a pair with {name} {getattr(own, name)}")
    model.get_input_embeddings().weight.copy_(teacher.get_input_embeddings().weight)
    _norm(model.base_model.norm, teacher.base_model.norm)
    for layer, source in zip(
        model.base_model.layers, (teacher.base_model.layers[index] for index in layers), strict=True
    ):
        _norm(layer.input_layernorm, source.input_layernorm)
        _norm(layer.post_attention_layernorm, source.post_attention_layernorm)
        _mlp(layer.mlp, source.mlp)
        if hasattr(layer, "self_attn"):
            _attention(layer.self_attn, source.self_attn)
        else:
            _delta_net(layer.linear_attn, source.self_attn)


@torch.no_grad()
def inherit_drafter(drafter: DFlashDrafter, teacher: DFlashDrafter) -> None:
    """All of ``teacher`` but the neurons and the last layers for which ``drafter`` has no room.

    Raises:
        ConfigError: another width, other heads, another number of taps, or fewer layers than ``drafter`` has.
    """
    own, other = drafter.config, teacher.config
    same = (own.hidden_size, own.dims.num_heads, own.dims.num_kv_heads, own.dims.head_dim, len(own.target_layer_ids))
    theirs = (
        *(other.hidden_size, other.dims.num_heads, other.dims.num_kv_heads, other.dims.head_dim),
        len(other.target_layer_ids),
    )
    if same != theirs or own.num_layers > other.num_layers:
        raise ConfigError(
            f"{KEY}.dflash", other.num_layers, f"{own.num_layers} layers, and width, heads, taps of {same}"
        )
    kept = {name: value for name, value in teacher.state_dict().items() if ".mlp." not in name}
    wanted = drafter.state_dict()
    drafter.load_state_dict({name: value for name, value in kept.items() if name in wanted}, strict=False)
    for layer, source in zip(drafter.layers, teacher.layers, strict=False):
        _mlp(layer.mlp, source.mlp)


def _norm(norm: nn.Module, source: nn.Module) -> None:
    norm.weight.copy_(source.weight - 1.0)  # Qwen3.5 stores the distance from 1


def _mlp(mlp: nn.Module, source: nn.Module) -> None:
    """The strongest neurons: those with the largest product of the norms of their three vectors."""
    strength = (
        source.gate_proj.weight.norm(dim=1) * source.up_proj.weight.norm(dim=1) * source.down_proj.weight.norm(dim=0)
    )
    count = mlp.gate_proj.weight.shape[0]
    if count > len(strength):
        raise ConfigError(f"{KEY}.target", len(strength), f"a pair with an intermediate size of {count} at least")
    kept = strength.topk(count).indices.sort().values
    mlp.gate_proj.weight.copy_(source.gate_proj.weight[kept])
    mlp.up_proj.weight.copy_(source.up_proj.weight[kept])
    mlp.down_proj.weight.copy_(source.down_proj.weight[:, kept])


def _attention(attention: nn.Module, source: nn.Module) -> None:
    """The same attention: its output gate begins at sigmoid(0) = 1/2, and the output projection doubles it again."""
    heads, size = source.config.num_attention_heads, attention.head_dim
    query = attention.q_proj.weight.view(heads, 2, size, -1)  # query and gate of each head in turn
    query[:, 0] = source.q_proj.weight.view(heads, size, -1)
    query[:, 1] = 0.0
    attention.k_proj.weight.copy_(source.k_proj.weight)
    attention.v_proj.weight.copy_(source.v_proj.weight)
    attention.o_proj.weight.copy_(2.0 * source.o_proj.weight)
    _norm(attention.q_norm, source.q_norm)
    _norm(attention.k_norm, source.k_norm)


def _delta_net(net: nn.Module, source: nn.Module) -> None:
    """Queries, keys, values and output of the attention as far as the delta net has heads of the same size for them."""
    size = net.head_k_dim
    if size != source.head_dim or net.head_v_dim != size:
        raise ConfigError(f"{KEY}.target", source.head_dim, f"a pair with heads of {size} (target.hybrid.head_dim)")
    query = _heads(source.q_proj.weight, net.num_k_heads, size)
    key = _heads(source.k_proj.weight, net.num_k_heads, size)
    value = _heads(source.v_proj.weight, net.num_v_heads, size)
    net.in_proj_qkv.weight.copy_(torch.cat((query, key, value)))
    net.out_proj.weight.copy_(_heads(source.o_proj.weight.T, net.num_v_heads, size).T)


def _heads(weight: Tensor, wanted: int, size: int) -> Tensor:
    """``wanted`` heads spread evenly over those of ``weight`` [heads * size, hidden]; repeated where it has fewer."""
    heads = weight.view(-1, size, weight.shape[-1])
    pick = torch.arange(wanted, device=weight.device) * len(heads) // wanted
    return heads[pick].flatten(0, 1)
