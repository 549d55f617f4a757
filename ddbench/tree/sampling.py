"""The target's own distribution under a request's sampling settings, and draws from it that any strategy can repeat."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ddbench.errors import ConfigError

Setting = float | int | Tensor

_SCALE = 2.0**52  # probabilities become integers out of this many, so that sums are exact on every device
_GOLDEN = 0x9E3779B97F4A7C15


def filtered_probs(logits: Tensor, temperature: Setting, top_p: Setting = 1.0, top_k: Setting = 0) -> Tensor:
    """The distribution that a request samples from: temperature, then top-k, then top-p, then renormalised.

    Exactly ``top_k`` tokens are kept, and of those the fewest whose probability reaches ``top_p`` (at least one).
    Equal logits count as ordered by token id. A temperature of 0 is the argmax (the smallest id among equals) with
    probability 1.

    Args:
        logits: ``[..., vocab]``, any floating dtype; computed in float32.
        temperature: at least 0. Like the others a number, or a tensor of the leading shape of ``logits`` or one that
            stands for its first dimensions (``[batch]`` for logits ``[batch, rows, vocab]``).
        top_p: in (0, 1]; 1 keeps all.
        top_k: 0 keeps all.

    Returns:
        float32 ``[..., vocab]``.

    Raises:
        ConfigError: a number out of range. Tensors are not looked into: that would wait for the device.
    """
    _check("temperature", temperature, lambda x: x >= 0, "at least 0")
    _check("top_p", top_p, lambda x: 0 < x <= 1, "above 0 and at most 1")
    _check("top_k", top_k, lambda x: x >= 0 and x == int(x), "a whole number, 0 for no limit")
    vocab = logits.shape[-1]
    heat, mass, count = (_spread(setting, logits) for setting in (temperature, top_p, top_k))
    shifted = logits.float() - logits.float().amax(-1, keepdim=True)
    scaled = shifted / torch.where(heat > 0, heat, 1.0).float()
    if not _off(top_p, 1.0) or not _off(top_k, 0):
        scaled = _cut(logits, scaled, mass, torch.where(count > 0, count, vocab))
    probs = scaled.softmax(-1)
    if isinstance(temperature, int | float) and temperature > 0:
        return probs
    argmax = torch.zeros_like(probs).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    return torch.where(heat > 0, probs, argmax)


def _cut(logits: Tensor, scaled: Tensor, mass: Tensor, count: Tensor) -> Tensor:
    """Sets to -inf what top-k, then top-p leave out. The order is that of the logits, before scaling rounds them."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    values = scaled.gather(-1, order)
    place = torch.arange(scaled.shape[-1], device=scaled.device)
    values = values.masked_fill(place >= count, -torch.inf)
    probs = values.softmax(-1, dtype=torch.float64)
    before = probs.cumsum(-1) - probs  # a token stays if those before it do not yet reach top-p
    values = values.masked_fill((before >= mass) & (place > 0) & (mass < 1), -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, order, values)


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """One token a row by inverting the cumulative distribution in the order of the vocabulary: int64 ``[...]``.

    Sums are of integers, hence exact and the same on every device. A token of probability 0 is never drawn (nor is one
    below 2 ** -52); a row without any probability gives token 0.

    Args:
        probs: ``[..., vocab]``, at least 0; need not be normalised to the last digit.
        uniforms: ``[...]``, float64 in [0, 1).
    """
    if uniforms.shape != probs.shape[:-1]:
        raise ConfigError("uniforms.shape", tuple(uniforms.shape), f"one a row: {tuple(probs.shape[:-1])}")
    ends = (probs.double() * _SCALE).to(torch.int64).cumsum(-1)
    total = ends[..., -1:]
    target = (uniforms.double()[..., None] * total).floor().to(torch.int64)
    target = torch.minimum(target, total - 1)  # rounding may lift the product up to the total
    return torch.searchsorted(ends, target, right=True)[..., 0].clamp(max=probs.shape[-1] - 1)


def keyed_uniforms(seed: Tensor, position: Tensor) -> Tensor:
    """Uniform numbers that depend on (seed, position) alone: float64 in [0, 1), of the shape of ``position``.

    A counter hashed by the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014), once for the key and once for the counter. The draw of a token is then the same whatever tree,
    batch or strategy asks for it: give it the token's absolute position, and a seed into which the prompt is folded.

    Args:
        seed: ``[batch]`` int64.
        position: ``[batch, ...]`` int64, the absolute position of the token to be drawn.
    """
    if seed.shape != position.shape[:1]:
        raise ConfigError("seed.shape", tuple(seed.shape), f"[batch], here {tuple(position.shape[:1])}")
    key = _mix(seed.to(torch.int64) + _signed(_GOLDEN))
    counter = key.view(-1, *[1] * (position.dim() - 1)) + (position.to(torch.int64) + 1) * _signed(_GOLDEN)
    return _shift_right(_mix(counter), 11).double() * 2.0**-53


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _shift_right(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shift_right(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Shift of an unsigned number: torch's own carries the sign along."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _spread(setting: Setting, logits: Tensor) -> Tensor:
    """The setting as a tensor that broadcasts against ``[..., vocab]``."""
    if not isinstance(setting, Tensor):
        return torch.full((1,) * logits.dim(), setting, dtype=torch.float64, device=logits.device)
    lead = logits.shape[:-1]
    if setting.shape != lead[: setting.dim()]:
        raise ConfigError("sampling settings", tuple(setting.shape), f"the first dimensions of {tuple(lead)}")
    return setting.to(logits.device).reshape(*setting.shape, *[1] * (logits.dim() - setting.dim()))


def _off(setting: Setting, off: float) -> bool:
    return not isinstance(setting, Tensor) and setting == off


def _check(name: str, setting: Setting, allowed: Callable[[float], bool], text: str) -> None:
    if not isinstance(setting, Tensor) and not allowed(setting):
        raise ConfigError(name, setting, text)
