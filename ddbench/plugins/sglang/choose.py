"""The target's token after every entry of a window: its most probable one, or a draw from its filtered distribution.

Sample and match: the draw at a node has the law of the target's distribution there, and the walk follows the draws, so
every emitted token has that law whatever was drafted. Filters are those of SGLang's own sampler in plain torch
(`top_k_top_p_min_p_sampling_from_probs_torch` in `sglang/srt/layers/sampler.py`): all on the same sorted distribution.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 256  # entries whose sorted distributions are in memory at a time


def choose(logits: Tensor, sampling: Any, width: int) -> Tensor:
    """One token an entry, int64 ``[R, width]``.

    Args:
        logits: ``[R * width, vocab]``.
        sampling: SGLang's SamplingBatchInfo, one entry a request; None is greedy. ``top_k`` 1 is a greedy request.
    """
    best = logits.argmax(dim=-1)
    if sampling is None or sampling.is_all_greedy:
        return best.view(-1, width)
    temperatures, top_ks = _spread(sampling.temperatures, width), _spread(sampling.top_ks, width)
    filtered = sampling.need_top_k_sampling or sampling.need_top_p_sampling or sampling.need_min_p_sampling
    filters = (top_ks, _spread(sampling.top_ps, width), _spread(sampling.min_ps, width)) if filtered else None
    drawn = torch.empty_like(best)
    for begin in range(0, logits.shape[0], ROWS):
        part = slice(begin, begin + ROWS)
        probs = torch.softmax(logits[part].float() / temperatures[part], dim=-1)
        drawn[part] = _draw(probs) if filters is None else _draw_filtered(probs, *(each[part] for each in filters))
    return torch.where(top_ks.view(-1) == 1, best, drawn).view(-1, width)


def _spread(values: Tensor, width: int) -> Tensor:
    """A value a request as one an entry, ``[R * width, 1]``."""
    return values.view(-1, 1).repeat_interleave(width, dim=0)


def _draw(probs: Tensor) -> Tensor:
    """The first of exponential clocks with these rates: a draw. Changes ``probs``."""
    return probs.div_(torch.empty_like(probs).exponential_()).argmax(dim=-1)


def _draw_filtered(probs: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor) -> Tensor:
    ordered, ids = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    least = ordered[:, :1] * min_ps
    out = (rank >= top_ks) | (before > top_ps) | (ordered < least)
    place = _draw(ordered.masked_fill_(out, 0.0))
    return ids.gather(1, place[:, None]).view(-1)
