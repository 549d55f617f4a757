"""Training of an EAGLE-3 drafter on the target's own greedy text, unrolled over its own hidden rows.

Step 0 of anchor t sees the target's feature at t; step j sees the drafter's hidden row of step j - 1, its own earlier
steps and the true rows up to t: what it meets when it drafts (EAGLE-3 paper §3.2).
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ddbench.drafters.attention import KeyValue
from ddbench.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from experiments.train_tiny.config import Eagle3TrainConfig
from experiments.train_tiny.drafter_json import shared_json
from experiments.train_tiny.features import tapped_states
from experiments.train_tiny.generate import Continuations
from experiments.train_tiny.optim import adamw, set_learning_rate

log = logging.getLogger(__name__)
STEP_DECAY = 0.8  # loss weight of unrolled step j is STEP_DECAY ** j


def eagle3_json(target: PreTrainedModel, config: Eagle3TrainConfig) -> dict[str, Any]:
    """``config.json`` of a drafter that fits ``target``, in the layout that SGLang and vLLM load."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **shared_json(target, config.intermediate_size, 1),
        "target_hidden_size": target.config.hidden_size,
        "draft_vocab_size": config.draft_vocab_size,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(config.taps), "use_aux_hidden_state": True},
    }


def draft_vocabulary(data: Continuations, vocab_size: int, draft_vocab_size: int) -> Tensor:
    """The ``draft_vocab_size`` most frequent tokens of the continuations, ascending ids."""
    counts = torch.bincount(data.tokens.flatten().long(), minlength=vocab_size)
    return counts.topk(draft_vocab_size).indices.sort().values


def train_eagle3(
    target: PreTrainedModel, data: Continuations, config: Eagle3TrainConfig, seed: int
) -> tuple[Eagle3Drafter, dict[str, Any], list[dict[str, float]]]:
    """Returns the drafter, its ``config.json`` and the log (step, loss, share of right drafts by step, seconds)."""
    device = data.tokens.device
    as_json = eagle3_json(target, config)
    torch.manual_seed(seed)
    drafter = Eagle3Drafter(Eagle3Config.from_json(as_json)).to(device)
    vocabulary = draft_vocabulary(data, target.config.vocab_size, config.draft_vocab_size)
    to_draft = torch.full((target.config.vocab_size,), -1, device=device)
    to_draft[vocabulary] = torch.arange(config.draft_vocab_size, device=device)
    if drafter.d2t is not None:
        drafter.d2t.copy_(vocabulary - torch.arange(config.draft_vocab_size, device=device))
    for module in drafter.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=0.02)
    with torch.no_grad():
        drafter.lm_head.weight.copy_(target.get_output_embeddings().weight[vocabulary])
    optimizer = adamw(drafter.parameters(), config.learning_rate, 0.05)
    generator = torch.Generator(device).manual_seed(seed)
    history: list[dict[str, float]] = []
    began = time.perf_counter()
    for step in range(config.steps):
        set_learning_rate(optimizer, config.learning_rate, step, config.steps)
        pick = torch.randint(0, len(data.tokens), (config.batch,), generator=generator, device=device)
        tokens, first, ends = data.tokens[pick].long(), data.prompt_tokens[pick], data.ends[pick]
        losses, rights = [], []
        with torch.autocast(device.type, torch.bfloat16):
            features = tapped_states(target, tokens, list(config.taps))
            for index, (logits, labels, real) in enumerate(
                _unrolled(drafter, target, tokens, first, ends, features, config.unroll)
            ):
                known = to_draft[labels]
                useful = real & (known >= 0)
                entropy = functional.cross_entropy(
                    logits.float().flatten(0, 1), known.clamp(min=0).flatten(), reduction="none"
                )
                losses.append(STEP_DECAY**index * (entropy.view_as(useful) * useful).sum() / useful.sum().clamp(min=1))
                rights.append((((logits.argmax(-1) == known) & useful).sum() / real.sum().clamp(min=1)).detach())
        loss = torch.stack(losses).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % max(1, config.steps // 20) == 0 or step == config.steps - 1:
            entry = {"step": step, "loss": round(loss.item(), 4), "seconds": round(time.perf_counter() - began, 1)}
            entry |= {f"right_step_{index}": round(right.item(), 4) for index, right in enumerate(rights)}
            history.append(entry)
            log.info("eagle3 %s", entry)
    return drafter, as_json, history


def _unrolled(
    drafter: Eagle3Drafter,
    target: PreTrainedModel,
    tokens: Tensor,
    first: Tensor,
    ends: Tensor,
    features: Tensor,
    unroll: int,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Per unrolled step: draft logits [rows, anchors, draft_vocab], labels and which anchors count."""
    rows, length = tokens.shape
    anchors = length - 1 - unroll  # anchor t drafts tokens t + 2 .. t + 1 + unroll
    at = torch.arange(anchors, device=tokens.device)
    embed = target.get_input_embeddings()
    feature = drafter.project_features(features[:, :anchors])
    causal = at[:, None] >= at[None, :]
    true_rows: KeyValue | None = None
    own: list[KeyValue] = []
    steps = []
    for index in range(unroll):
        embeds = embed(tokens[:, 1 + index : 1 + index + anchors]).detach()
        cos, sin = drafter.rotary(embeds, (at + index).expand(rows, -1))
        layer = drafter.midlayer
        query, key, value = layer.self_attn.project(layer.attention_input(embeds, feature), cos, sin)
        if true_rows is None:
            true_rows = (key, value)
        else:
            own.append((key, value))
        feature = layer.finish(feature, _attend_unrolled(query, true_rows, own, causal))
        labels = tokens[:, 2 + index : 2 + index + anchors]
        real = (at >= first[:, None] - 1) & (at + 2 + index < ends[:, None])
        steps.append((drafter.logits(feature), labels, real))
    return steps


def _attend_unrolled(query: Tensor, true_rows: KeyValue, own: list[KeyValue], causal: Tensor) -> Tensor:
    """Attention over the true rows up to the anchor and the anchor's own earlier steps; heads merged."""
    repeat = query.shape[1] // true_rows[0].shape[1]
    keys, values = (x.repeat_interleave(repeat, dim=1) for x in true_rows)
    scale = 1 / math.sqrt(query.shape[-1])
    scores = [(query @ keys.transpose(-1, -2) * scale).masked_fill(~causal, float("-inf"))]
    own_values = []
    for key, value in own:
        scores.append((query * key.repeat_interleave(repeat, dim=1)).sum(-1, keepdim=True) * scale)
        own_values.append(value.repeat_interleave(repeat, dim=1))
    weights = torch.cat(scores, dim=-1).float().softmax(-1).to(query.dtype)
    out = weights[..., : keys.shape[2]] @ values
    for index, value in enumerate(own_values):
        out = out + weights[..., keys.shape[2] + index, None] * value
    return out.transpose(1, 2).flatten(2)
