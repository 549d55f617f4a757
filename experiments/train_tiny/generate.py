"""Greedy continuations of the target in large batches: the text the drafters learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel


@dataclass(frozen=True)
class Continuations:
    """Prompts with their greedy continuations.

    ``tokens`` [rows, width]; ``prompt_tokens`` [rows]; ``ends`` [rows] is one past the last real token, the end token
    being kept. What follows is padding.
    """

    tokens: Tensor
    prompt_tokens: Tensor
    ends: Tensor


def joined(parts: Sequence[Continuations]) -> Continuations:
    """All rows of ``parts``, padded on the right to one width."""
    width = max(part.tokens.shape[1] for part in parts)
    tokens = torch.cat([functional.pad(part.tokens, (0, width - part.tokens.shape[1])) for part in parts])
    return Continuations(tokens, torch.cat([p.prompt_tokens for p in parts]), torch.cat([p.ends for p in parts]))


@torch.inference_mode()
def continued(
    model: PreTrainedModel,
    prompts: Tensor,
    new_tokens: int,
    end_ids: Tensor,
    temperatures: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Continuations:
    """Continues ``prompts`` [rows, length], all of one length, by at most ``new_tokens`` tokens; rows that ended are
    filled with their end token. ``temperatures`` [rows]: 0 is greedy; None is greedy everywhere."""
    model.eval()
    cache = DynamicCache(config=model.config)
    tokens, step_input = [prompts], prompts
    done = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
    ends = torch.full_like(prompts[:, 0], prompts.shape[1] + new_tokens)
    for index in range(new_tokens):
        logits = model(input_ids=step_input, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        following = torch.where(done, step_input[:, -1], _pick(logits, temperatures, generator))
        ended = torch.isin(following, end_ids) & ~done
        ends = torch.where(ended, prompts.shape[1] + index + 1, ends)
        done = done | ended
        step_input = following[:, None]
        tokens.append(step_input)
    return Continuations(torch.cat(tokens, dim=1), torch.full_like(ends, prompts.shape[1]), ends)


def _pick(logits: Tensor, temperatures: Tensor | None, generator: torch.Generator | None) -> Tensor:
    """Argmax, or a draw by the Gumbel-max trick where the temperature is above 0."""
    if temperatures is None:
        return logits.argmax(-1)
    uniform = torch.rand(logits.shape, generator=generator, device=logits.device).clamp_(1e-20, 1 - 1e-7)
    return (logits.float() - temperatures[:, None] * torch.log(-torch.log(uniform))).argmax(-1)


def random_prompts(stream: Tensor, starts: Tensor, rows: int, length: int, generator: torch.Generator) -> Tensor:
    """The first ``length`` tokens of ``rows`` random units, [rows, length]."""
    pick = starts[torch.randint(0, starts.numel(), (rows, 1), generator=generator, device=stream.device)]
    return stream[pick + torch.arange(length, device=stream.device)].long()
