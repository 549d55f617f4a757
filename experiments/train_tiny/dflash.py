"""Training of a DFlash drafter on the target's own greedy text.

Random anchors start blocks; all blocks of a sequence run in one pass, each seeing the target's features before its
anchor and itself (DFlash paper §4.2, A.1). Loss weight of offset k: exp(-(k - 1) / gamma).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ddbench.drafters.dflash import DFlashConfig, DFlashDrafter
from experiments.train_tiny.config import DFlashTrainConfig
from experiments.train_tiny.drafter_json import shared_json
from experiments.train_tiny.features import tapped_states
from experiments.train_tiny.generate import Continuations
from experiments.train_tiny.optim import adamw, set_learning_rate
from experiments.train_tiny.pace import paced
from experiments.train_tiny.validate import block_mask, chain_acceptance

log = logging.getLogger(__name__)
NOTES = 10


@dataclass(frozen=True)
class Blocks:
    """Blocks at random anchors: [rows, blocks, block_size] unless said otherwise."""

    inputs: Tensor  # anchor token, then mask tokens
    labels: Tensor
    real: Tensor  # the label lies inside the text
    positions: Tensor  # [rows, blocks * block_size]
    mask: Tensor  # [rows, 1, blocks * block_size, length + blocks * block_size]


def dflash_json(target: PreTrainedModel, config: DFlashTrainConfig, mask_token_id: int) -> dict[str, Any]:
    """``config.json`` of a drafter that fits ``target``, in the published layout."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **shared_json(target, config.intermediate_size, config.layers),
        "layer_types": ["full_attention"] * config.layers,
        "max_window_layers": config.layers,
        "use_sliding_window": False,
        "sliding_window": None,
        "num_target_layers": target.config.num_hidden_layers,
        "block_size": config.block_size,
        "dflash_config": {"mask_token_id": mask_token_id, "target_layer_ids": list(config.taps)},
    }


def new_dflash(target: PreTrainedModel, config: DFlashTrainConfig, mask_token_id: int, seed: int) -> DFlashDrafter:
    torch.manual_seed(seed)
    drafter = DFlashDrafter(DFlashConfig.from_json(dflash_json(target, config, mask_token_id)))
    for module in drafter.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=0.02)
    return drafter.to(target.device)


def draw_blocks(
    tokens: Tensor, first: Tensor, ends: Tensor, config: DFlashConfig, anchors: int, generator: torch.Generator
) -> Blocks:
    """``anchors`` blocks a row, anchored at random from the first generated token on."""
    rows, length = tokens.shape
    span = (ends - 1 - first).clamp(min=1)
    draws = torch.rand(rows, anchors, generator=generator, device=tokens.device)
    starts = first[:, None] + (draws * span[:, None]).long()
    positions = (starts[..., None] + torch.arange(config.block_size, device=tokens.device)).flatten(1)
    labels = tokens.gather(1, positions.clamp(max=length - 1)).view(rows, anchors, -1)
    inputs = torch.full_like(labels, config.mask_token_id)
    inputs[..., 0] = labels[..., 0]
    real = positions.view_as(labels) < ends[:, None, None]
    return Blocks(inputs, labels, real, positions, block_mask(starts, length, config.block_size))


def block_loss(
    drafter: DFlashDrafter, embedding: Tensor, head: Tensor, features: Tensor, blocks: Blocks, gamma: float
) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropy of the drafts, and which of them are right [rows, blocks, block_size - 1]."""
    rows, length, _ = features.shape
    where = torch.arange(length, device=features.device).expand(rows, -1)
    context = drafter.context_kv(drafter.project_features(features), where)
    hidden = drafter(functional.embedding(blocks.inputs.flatten(1), embedding), blocks.positions, context, blocks.mask)
    hidden = hidden.view(*blocks.inputs.shape, -1)[:, :, 1:]
    logits = functional.linear(hidden, head).float()
    labels, real = blocks.labels[..., 1:], blocks.real[..., 1:]
    losses = functional.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view_as(labels)
    weights = real * torch.exp(-torch.arange(labels.shape[-1], device=labels.device) / gamma)
    return (losses * weights).sum() / weights.sum(), (logits.argmax(-1) == labels) & real


BlockLoss = Callable[[DFlashDrafter, Tensor, Tensor, Tensor, Blocks, float], tuple[Tensor, Tensor]]


def block_loss_for(config: DFlashTrainConfig) -> BlockLoss:
    return torch.compile(block_loss, dynamic=False) if config.compile else block_loss


def train_dflash(
    target: PreTrainedModel,
    drafter: DFlashDrafter,
    data: Continuations,
    validation: Continuations,
    config: DFlashTrainConfig,
    seed: int,
) -> list[dict[str, float | None]]:
    """Trains ``drafter`` in place, the target frozen; returns the log.

    An entry: step, loss, share of right first drafts, tokens the chain emits per round on held-out text, seconds.
    """
    device = data.tokens.device
    loss_of = block_loss_for(config)
    embedding, head = target.get_input_embeddings().weight.detach(), target.get_output_embeddings().weight.detach()
    optimizer = adamw(drafter.parameters(), config.learning_rate, 0.05)
    generator = torch.Generator(device).manual_seed(seed)
    history: list[dict[str, float | None]] = []
    began = time.perf_counter()
    for turn in paced(config.steps, config.seconds, NOTES):
        set_learning_rate(optimizer, config.learning_rate, turn.place, config.steps)
        pick = torch.randint(0, len(data.tokens), (config.batch,), generator=generator, device=device)
        tokens, first, ends = data.tokens[pick].long(), data.prompt_tokens[pick], data.ends[pick]
        blocks = draw_blocks(tokens, first, ends, drafter.config, config.anchors, generator)
        with torch.autocast(device.type, torch.bfloat16):
            features = tapped_states(target, tokens, [tap + 1 for tap in config.taps])
            loss, right = loss_of(drafter, embedding, head, features, blocks, config.gamma)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if turn.note:
            history.append(_entry(target, drafter, validation, turn.step, loss, blocks, right, began))
    if history[-1]["step"] != turn.step:
        history.append(_entry(target, drafter, validation, turn.step, loss, blocks, right, began))
    return history


def _entry(
    target: PreTrainedModel,
    drafter: DFlashDrafter,
    validation: Continuations,
    step: int,
    loss: Tensor,
    blocks: Blocks,
    right: Tensor,
    began: float,
) -> dict[str, float | None]:
    first_right = right[..., 0].sum() / blocks.real[..., 1].sum()
    entry = {
        "step": step,
        "loss": round(loss.item(), 4),
        "first_right": round(first_right.item(), 4),
        "held_out_emitted_per_round": chain_acceptance(target, drafter, validation),
        "seconds": round(time.perf_counter() - began, 1),
    }
    log.info("dflash %s", entry)
    return entry
