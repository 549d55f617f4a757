"""The target's token after every verified node: its most probable one, or a draw from its filtered distribution.

Sample and match: the draw at a node has the law of the target's distribution there, and the walk follows the draws, so
every emitted token has that law whatever was drafted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

GREEDY = 1e-5  # vLLM's own bound: a lower temperature is greedy


def choose(logits: Tensor, sampling: Any, num_draft_tokens: list[int]) -> Tensor:
    """One token a row of ``logits`` ``[sampled, vocab]``, int64 ``[sampled]``.

    Args:
        sampling: vLLM's SamplingMetadata, one entry a request.
        num_draft_tokens: of each request; it has one more row in ``logits``, in the same order.
    """
    if sampling.all_greedy:
        return logits.argmax(dim=-1)
    counts = torch.tensor([count + 1 for count in num_draft_tokens], device="cpu").to(logits.device, non_blocking=True)

    def spread(values: Tensor | None) -> Tensor | None:
        return None if values is None else torch.repeat_interleave(values, counts, output_size=logits.shape[0])

    temperature = spread(sampling.temperature)
    assert temperature is not None
    greedy = temperature < GREEDY
    best = logits.argmax(dim=-1)
    scaled = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
    filtered = apply_top_k_top_p(scaled, spread(sampling.top_k), spread(sampling.top_p))
    probs = filtered.softmax(dim=-1, dtype=torch.float32)
    waits = torch.empty_like(probs).exponential_()
    end = 0
    for request, count in enumerate(num_draft_tokens):
        begin, end = end, end + count + 1
        generator = sampling.generators.get(request)
        if generator is not None:
            waits[begin:end].exponential_(generator=generator)
    drawn = probs.div_(waits).argmax(dim=-1)  # the first of exponential clocks with these rates: a draw
    return torch.where(greedy, best, drawn)
