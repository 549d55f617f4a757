"""Chain acceptance on held-out text while training: every anchor is drafted once, then rounds walk along them.

Exact for greedy decoding, since the drafter's block depends on the committed prefix alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ddbench.drafters.dflash import DFlashDrafter
from experiments.train_tiny.features import tapped_states
from experiments.train_tiny.generate import Continuations


def block_mask(anchors: Tensor, length: int, block_size: int) -> Tensor:
    """Boolean [rows, 1, blocks * block, length + blocks * block]: features before the own anchor, and the own block."""
    rows, blocks = anchors.shape
    before = torch.arange(length, device=anchors.device) < anchors[..., None]  # [rows, blocks, length]
    before = before.repeat_interleave(block_size, dim=1)
    owner = torch.arange(blocks, device=anchors.device).repeat_interleave(block_size)
    own = (owner[:, None] == owner[None, :]).expand(rows, -1, -1)
    return torch.cat((before, own), dim=-1).unsqueeze(1)


@torch.no_grad()
def chain_acceptance(
    target: PreTrainedModel, drafter: DFlashDrafter, data: Continuations, rows: int = 8
) -> float | None:
    """Tokens that the chain emits per round over all rows of ``data``, prefill token excluded; None without a round."""
    emitted = rounds = 0
    for start in range(0, len(data.tokens), rows):
        part = slice(start, start + rows)
        lengths = _accepted(target, drafter, data.tokens[part].long(), data.prompt_tokens[part], data.ends[part])
        for row, first, end in zip(lengths, data.prompt_tokens[part].tolist(), data.ends[part].tolist(), strict=True):
            at = first
            while at < end - 1:
                at += min(row[at - first] + 1, end - 1 - at)
                rounds += 1
            emitted += end - 1 - first
    return round(emitted / rounds, 3) if rounds else None


def _accepted(
    target: PreTrainedModel, drafter: DFlashDrafter, tokens: Tensor, first: Tensor, ends: Tensor
) -> list[list[int]]:
    """Accepted drafts at every anchor from the first generated token on, [rows][anchors]."""
    config = drafter.config
    length, block = tokens.shape[1], config.block_size
    anchors = first[:, None] + torch.arange(int((ends - first).max()), device=tokens.device)
    positions = (anchors[..., None] + torch.arange(block, device=tokens.device)).flatten(1)
    labels = tokens.gather(1, positions.clamp(max=length - 1)).view(*anchors.shape, block)
    real = positions.view_as(labels) < ends[:, None, None]
    inputs = torch.full_like(labels, config.mask_token_id)
    inputs[..., 0] = labels[..., 0]
    with torch.autocast(tokens.device.type, torch.bfloat16):
        features = tapped_states(target, tokens, [tap + 1 for tap in config.target_layer_ids])
        where = torch.arange(length, device=tokens.device).expand(len(tokens), -1)
        context = drafter.context_kv(drafter.project_features(features), where)
        embeds = target.get_input_embeddings()(inputs.flatten(1))
        hidden = drafter(embeds, positions, context, block_mask(anchors, length, block))
        logits = functional.linear(hidden.view(*labels.shape, -1)[:, :, 1:], target.get_output_embeddings().weight)
    right = (logits.argmax(-1) == labels[..., 1:]) & real[..., 1:]
    accepted: list[list[int]] = right.long().cumprod(-1).sum(-1).tolist()
    return accepted
