"""Gated-delta-net layers of Hugging Face models, run over our states; recurrent layers of other kinds, refused by name.

The layer's own sub-modules and weights do the work; only its ``forward`` is replaced while a target is driven, since
the library's keeps one state a sequence and knows no tree. Checked when a model is loaded: that the layer has the parts
this file uses, and that what is computed here from an empty state is what the layer itself computes
(:func:`check_against_own`). Classes of transformers 5.12 to 5.24 are known, see docs/hybrid.md.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddbench.decoding.gated_delta import Inputs
from ddbench.decoding.states import Dims, LayerState, Pass, RecurrentStates
from ddbench.errors import ConfigError

WANTED = "a model whose layers are full attention or gated delta net"
_PARTS = ("conv1d", "A_log", "dt_bias", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
_NOT_MIXERS = re.compile(r"norm|^ln|_ln$|mlp|moe|ffn|feed_forward|expert|drop", re.IGNORECASE)
_NO_MIXER = re.compile(r"(MLP|MoE|MoeBlock|HyperConnection|Residual|ResidualScaling|^Linear)$")  # by class
_EPSILON = 1e-6  # under the root of the unit length of queries and keys, in every known implementation


@dataclass(frozen=True)
class Projected:
    """A layer's input [rows, tokens, hidden] through its projections.

    ``mixed`` [rows, tokens, channels] goes through the convolution: queries, keys, values, each head by head;
    ``gate`` [rows, tokens, heads, value]; ``rate`` and ``decay`` [rows, tokens, heads] before their functions.
    """

    mixed: Tensor
    gate: Tensor
    rate: Tensor
    decay: Tensor


def _fused(layer: Any, hidden: Tensor) -> Projected:
    """Qwen3-Next: two projections with the heads' parts interleaved, which the layer itself puts in order."""
    query, key, value, gate, rate, decay = layer.fix_query_key_value_ordering(
        layer.in_proj_qkvz(hidden), layer.in_proj_ba(hidden)
    )
    mixed = torch.cat([part.flatten(2) for part in (query, key, value)], dim=-1)
    return Projected(mixed, gate, rate, decay)


def _split(layer: Any, hidden: Tensor) -> Projected:
    """Qwen3.5 and 3.6: a projection each."""
    gate = layer.in_proj_z(hidden).unflatten(-1, (layer.num_v_heads, layer.head_v_dim))
    return Projected(layer.in_proj_qkv(hidden), gate, layer.in_proj_b(hidden), layer.in_proj_a(hidden))


def _separate(layer: Any, hidden: Tensor) -> Projected:
    """OLMo Hybrid: queries, keys and values apart too."""
    mixed = torch.cat([project(hidden) for project in (layer.q_proj, layer.k_proj, layer.v_proj)], dim=-1)
    gate = layer.g_proj(hidden).unflatten(-1, (layer.num_v_heads, layer.head_v_dim))
    return Projected(mixed, gate, layer.b_proj(hidden), layer.a_proj(hidden))


@dataclass(frozen=True)
class Kind:
    """One implementation of the layer: its projections, and the names of its gated norm and its output projection."""

    project: Callable[[Any, Tensor], Projected]
    norm: str
    out: str
    parts: tuple[str, ...]


_QWEN35 = Kind(_split, "norm", "out_proj", ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"))
KINDS = {
    "Qwen3NextGatedDeltaNet": Kind(
        _fused, "norm", "out_proj", ("in_proj_qkvz", "in_proj_ba", "fix_query_key_value_ordering")
    ),
    "Qwen3_5GatedDeltaNet": _QWEN35,
    "Qwen3_5MoeGatedDeltaNet": _QWEN35,
    "OlmoHybridGatedDeltaNet": Kind(
        _separate, "o_norm", "o_proj", ("q_proj", "k_proj", "v_proj", "g_proj", "b_proj", "a_proj")
    ),
}


def keeps_state(model: Any, layer_types: Sequence[str]) -> bool:
    """Whether a model may have recurrent layers: the library says so of a family, whichever layers one of it has."""
    return bool(getattr(model, "_is_stateful", False)) or "linear_attention" in layer_types


def recurrent_layers(model: Any, layers: nn.ModuleList, layer_types: Sequence[str]) -> dict[int, nn.Module]:
    """The gated-delta-net modules by layer index of a model that :func:`keeps_state`; none where all layers attend.

    Raises:
        ConfigError: recurrent layers of another kind, by name, or a gated delta net whose parts are not the known ones.
    """
    found = {
        index: module
        for index, layer in enumerate(layers)
        for module in layer.children()
        if type(module).__name__ in KINDS
    }
    name = type(model).__name__
    kinds = dict(enumerate(layer_types))
    keepers = {type(part).__name__ for at, layer in enumerate(layers) for part in _keepers(layer, kinds.get(at))}
    others = sorted(keepers - KINDS.keys())
    if others or not (found or layer_types):
        raise ConfigError("target", name, f"{WANTED}, this one keeps recurrent state in {', '.join(others or [name])}")
    for module in found.values():
        _check_parts(name, module)
    return found


def _keepers(layer: nn.Module, kind: str | None) -> list[nn.Module]:
    """What keeps recurrent state in a decoder layer: whatever mixes tokens, attention of the usual kind aside.

    In a layer that is recurrent by its ``kind``, or of which the config says nothing, no attention is taken as usual.
    """
    mixers = _mixers(layer)
    return mixers if kind in (None, "linear_attention") else [part for part in mixers if not _attends(part)]


def _attends(module: nn.Module) -> bool:
    """Whether a module has grouped key and value heads and no sign of a state beside them (transformers 5.17 names the
    kind of cache where it is not the usual one)."""
    return hasattr(module, "num_key_value_groups") and not hasattr(module, "layer_type")


def _mixers(layer: nn.Module) -> list[nn.Module]:
    """What mixes tokens in a decoder layer, and in those that it is made of."""
    found = []
    for name, part in layer.named_children():
        kind = type(part).__name__
        if kind.endswith("DecoderLayer"):
            found += _mixers(part)
        elif not _NOT_MIXERS.search(name) and not _NO_MIXER.search(kind):
            found.append(part)
    return found


def _check_parts(name: str, module: Any) -> None:
    kind = type(module).__name__
    parts = (*_PARTS, KINDS[kind].norm, KINDS[kind].out, *KINDS[kind].parts)
    missing = [part for part in parts if not hasattr(module, part)]
    if "hidden_states" not in inspect.signature(module.forward).parameters:
        missing.append("forward(hidden_states)")
    if missing:
        known = "as in transformers 5.12 to 5.24 (OLMo Hybrid: from 5.17 on)"
        raise ConfigError("target", name, f"a {kind} {known}, this one lacks {', '.join(missing)}")
    conv, channels = module.conv1d, _dims(module).channels
    if not conv.weight.shape[0] == conv.groups == channels or conv.weight.shape[1] != 1 or conv.dilation != (1,):
        wanted = f"a {kind} with a convolution of each of {channels} channels by itself and without gaps"
        raise ConfigError("target", name, f"{wanted}, not {conv}")
    activation = getattr(module, "activation", "silu")
    if activation not in ("silu", "swish"):
        raise ConfigError("target", name, f"a {kind} with the silu activation, this one has {activation}")


def _dims(module: Any) -> Dims:
    return Dims(
        groups=int(module.num_k_heads),
        heads=int(module.num_v_heads),
        key=int(module.head_k_dim),
        value=int(module.head_v_dim),
        window=int(module.conv1d.weight.shape[-1]),
    )


def states_of(layers: dict[int, nn.Module], rows: int, dtype: torch.dtype, device: torch.device) -> RecurrentStates:
    """Empty states for ``rows`` sequences."""
    return RecurrentStates({index: _dims(module) for index, module in layers.items()}, rows, dtype, device)


def run_layer(module: Any, hidden: Tensor, state: LayerState, now: Pass) -> Tensor:
    """What the layer makes of ``hidden`` [rows, tokens, hidden], each token from the state that the pass gives it."""
    kind, dims = KINDS[type(module).__name__], state.dims
    projected = kind.project(module, hidden)
    columns = state.before(projected.mixed, now)
    mixed = functional.silu(_convolve(module.conv1d, columns, now, dims))
    sizes = [dims.groups * dims.key, dims.groups * dims.key, dims.heads * dims.value]
    query, key, value = (
        part.reshape(*part.shape[:2], -1, size).transpose(1, 2).float()
        for part, size in zip(torch.split(mixed, sizes, dim=-1), (dims.key, dims.key, dims.value), strict=True)
    )
    rate = projected.rate.sigmoid()
    if getattr(module, "allow_neg_eigval", False):
        rate = rate * 2.0
    log_decay = -module.A_log.float().exp() * functional.softplus(projected.decay.float() + module.dt_bias)
    inputs = Inputs(
        query=_unit(query) * dims.key**-0.5,
        key=_unit(key),
        value=value,
        log_decay=log_decay.transpose(1, 2),
        rate=rate.transpose(1, 2).float(),
    )
    output = state.advance(inputs, columns, now).transpose(1, 2).to(hidden.dtype)
    gated = getattr(module, kind.norm)(output.flatten(0, 2), projected.gate.flatten(0, 2))
    out: Tensor = getattr(module, kind.out)(gated.view(*hidden.shape[:2], -1))
    return out


def _convolve(conv: Any, columns: Tensor, now: Pass, dims: Dims) -> Tensor:
    """The causal convolution [rows, tokens, channels] of each channel by itself, over the tokens of each one's path."""
    if now.links is None:
        along = functional.conv1d(columns.transpose(1, 2), conv.weight, conv.bias, groups=dims.channels)
        return along.transpose(1, 2)
    rows = torch.arange(columns.shape[0], device=columns.device)[:, None]
    window = now.window(dims.window)
    weight = conv.weight[:, 0].float()  # [channels, window], oldest first
    total = columns.new_zeros(1, dtype=torch.float32) if conv.bias is None else conv.bias.float()
    for place in range(dims.window):
        total = total + columns[rows, window[:, :, place]].float() * weight[:, place]
    return total.to(columns.dtype)


def _unit(x: Tensor) -> Tensor:
    return x * (x.pow(2).sum(dim=-1, keepdim=True) + _EPSILON).rsqrt()


class Replacement:
    """Runs :func:`run_layer` in place of a module's ``forward`` until removed, for passes over ``cache``.

    Any other pass over the model, a plain one while a target holds it, runs as ever. May be nested.
    """

    def __init__(self, module: nn.Module, states: RecurrentStates, index: int, cache: object) -> None:
        self._module = module
        self._previous: Any = module.__dict__.get("forward")
        as_ever = module.forward

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if not any(each is cache for each in (*args, *kwargs.values())):
                out: Tensor = as_ever(hidden_states, *args, **kwargs)
                return out
            return run_layer(module, hidden_states, states.layers[index], states.now)

        module.__dict__["forward"] = forward

    def remove(self) -> None:
        if self._previous is None:
            del self._module.__dict__["forward"]
        else:
            self._module.__dict__["forward"] = self._previous


@torch.no_grad()
def check_against_own(name: str, layers: dict[int, nn.Module], hidden_size: int) -> None:
    """Is what :func:`run_layer` computes what the layer computes itself, from an empty state? Tries the first layer.

    Raises:
        ConfigError: it is not: the library's layer has changed in a way that its parts do not show.
    """
    index, module = next(iter(layers.items()))
    weight = next(module.parameters())
    hidden = torch.randn(1, 7, hidden_size, generator=torch.Generator().manual_seed(0)).to(weight)
    own = module(hidden_states=hidden)
    states = states_of({index: module}, 1, weight.dtype, weight.device)
    ours = run_layer(module, hidden, states.layers[index], Pass(0, True, None, None))
    error = float((ours - own).float().norm() / own.float().norm().clamp(min=1e-20))
    if not error <= (1e-4 if torch.finfo(weight.dtype).bits >= 32 else 5e-2):
        kind = type(module).__name__
        raise ConfigError("target", name, f"a {kind} as docs/hybrid.md has it, this one's output is {error:.1e} off")
