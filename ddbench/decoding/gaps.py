"""How near the target was to another token: best less second best, at every token of a greedy output.

Gathered beside a decode run and never inside it, by one pass over prompt and output together. Its sums run in another
order than those of decoding, so a gap is right up to rounding, which is what it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ddbench.decoding.pair import ModelPair


def top_two_gaps(pair: ModelPair, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> list[float | None]:
    """Logit of the target's best token less that of its second best, for each token of a greedy continuation.

    The same difference in log-probabilities: their common normaliser drops out. None at a token that is neither of the
    pass's two best, so that the difference would not be about it.
    """
    if not output_ids:
        return []
    ids = torch.tensor([[*prompt_ids, *output_ids[:-1]]], device=pair.device)
    with torch.inference_mode():
        out = pair.target(input_ids=ids, use_cache=False, logits_to_keep=len(output_ids))
        values, best = out.logits[0].topk(2, dim=-1)
        gaps = (values[:, 0].float() - values[:, 1].float()).tolist()
        among = (best == torch.tensor(output_ids, device=pair.device)[:, None]).any(dim=-1).tolist()
    return [gap if known else None for gap, known in zip(gaps, among, strict=True)]
