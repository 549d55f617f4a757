"""The tiny target: a Qwen3 model trained from nothing, then freed of its greedy loops."""

from __future__ import annotations

import logging
import time

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from experiments.train_tiny.config import TargetConfig, UnloopConfig
from experiments.train_tiny.generate import Continuations
from experiments.train_tiny.hybrid import new_hybrid
from experiments.train_tiny.loops import distinct_ratio, is_loop, repeated_tokens
from experiments.train_tiny.optim import adamw, set_learning_rate

log = logging.getLogger(__name__)


def new_target(config: TargetConfig, vocab_size: int, end_id: int, pad_id: int) -> PreTrainedModel:
    if config.hybrid is not None:
        return new_hybrid(config, config.hybrid, vocab_size, end_id, pad_id)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end_id,
            pad_token_id=pad_id,
            attn_implementation="sdpa",
        )
    )


def sample_rows(stream: Tensor, rows: int, length: int, generator: torch.Generator) -> Tensor:
    """Random rows [rows, length] of a token stream, int64."""
    starts = torch.randint(0, stream.numel() - length, (rows, 1), generator=generator, device=stream.device)
    return stream[starts + torch.arange(length, device=stream.device)].long()


def train_target(
    model: PreTrainedModel, stream: Tensor, held_out: Tensor, config: TargetConfig, seed: int
) -> list[dict[str, float]]:
    """Next-token training on ``stream``; returns the log: step, loss, held-out loss (nats a token), tokens, seconds."""
    device = stream.device
    generator = torch.Generator(device).manual_seed(seed)
    optimizer = adamw(model.parameters(), config.learning_rate, config.weight_decay)
    loss_of = torch.compile(next_token_loss) if config.compile else next_token_loss
    history: list[dict[str, float]] = []
    began = time.perf_counter()
    model.train()
    for step in range(config.steps):
        set_learning_rate(optimizer, config.learning_rate, step, config.steps)
        rows = sample_rows(stream, config.batch, config.row_tokens + 1, generator)
        with torch.autocast(device.type, torch.bfloat16):
            loss = loss_of(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % max(1, config.steps // 20) == 0 or step == config.steps - 1:
            history.append(
                {
                    "step": step,
                    "loss": round(loss.item(), 4),
                    "held_out_loss": round(held_out_loss(model, held_out, config.row_tokens), 4),
                    "tokens": (step + 1) * config.batch * config.row_tokens,
                    "seconds": round(time.perf_counter() - began, 1),
                }
            )
            log.info("target %s", history[-1])
    return history


def next_token_loss(model: PreTrainedModel, rows: Tensor) -> Tensor:
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, stream: Tensor, length: int, rows: int = 64) -> float:
    """Mean next-token loss in nats on a fixed sample of the held-out stream."""
    generator = torch.Generator(stream.device).manual_seed(0)
    with torch.autocast(stream.device.type, torch.bfloat16):
        return float(next_token_loss(model, sample_rows(stream, rows, length + 1, generator)))


def outputs_of(continuations: Continuations) -> list[list[int]]:
    """What the model added to each prompt, end token included."""
    rows = zip(
        continuations.tokens.tolist(), continuations.prompt_tokens.tolist(), continuations.ends.tolist(), strict=True
    )
    return [row[first:end] for row, first, end in rows]


def looping_share(continuations: Continuations) -> float:
    """Share of the continuations that loop (:func:`is_loop`)."""
    return sum(is_loop(row) for row in outputs_of(continuations)) / len(continuations.tokens)


def mean_distinct_ratio(continuations: Continuations) -> float | None:
    """Mean over continuations of distinct tokens / tokens."""
    ratios = [ratio for row in outputs_of(continuations) if (ratio := distinct_ratio(row)) is not None]
    return sum(ratios) / len(ratios) if ratios else None


def without_loops(continuations: Continuations) -> Continuations:
    """The rows that do not loop and have more than one new token."""
    kept = [index for index, row in enumerate(outputs_of(continuations)) if len(row) > 1 and not is_loop(row)]
    pick = torch.tensor(kept, device=continuations.tokens.device, dtype=torch.int64)
    return Continuations(continuations.tokens[pick], continuations.prompt_tokens[pick], continuations.ends[pick])


def unloop(
    model: PreTrainedModel,
    continuations: Continuations,
    stream: Tensor,
    config: UnloopConfig,
    row_tokens: int,
    seed: int,
) -> float:
    """One round of unlikelihood training on the continuations that loop; returns the share that did.

    On a looping continuation every token that ends an 8-gram seen before gets -log(1 - p) (Welleck et al. 2020,
    "Neural text generation with unlikelihood training"); a language-model batch beside it holds the model in place.
    """
    device = stream.device
    looping = [index for index, row in enumerate(outputs_of(continuations)) if is_loop(row)]
    share = len(looping) / len(continuations.tokens)
    if len(looping) < 8:
        return share
    chosen_rows = continuations.tokens[torch.tensor(looping, device=device)].long()
    repeated = torch.zeros(chosen_rows.shape, dtype=torch.bool)
    for row, index in enumerate(looping):
        first, end = int(continuations.prompt_tokens[index]), int(continuations.ends[index])
        repeated[row, first:end] = torch.tensor(repeated_tokens(continuations.tokens[index, first:end].tolist()))
    repeated = repeated.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    optimizer = adamw(model.parameters(), config.learning_rate, 0.0)
    model.train()
    for step in range(config.steps):
        set_learning_rate(optimizer, config.learning_rate, step, config.steps)
        pick = torch.randint(0, len(looping), (config.batch,), generator=generator, device=device)
        tokens, penalised = chosen_rows[pick], repeated[pick, 1:]
        with torch.autocast(device.type, torch.bfloat16):
            log_probs = model(input_ids=tokens[:, :-1], use_cache=False).logits.float().log_softmax(-1)
            chosen = log_probs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
            unlikely = -torch.log1p(-chosen.exp().clamp(max=1 - 1e-5))
            penalty = (unlikely * penalised).sum() / penalised.sum()
            loss = (
                next_token_loss(model, sample_rows(stream, config.batch, row_tokens + 1, generator))
                + config.weight * penalty
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    log.info(
        "unloop: %.3f of the continuations looped; last loss %.3f, penalty %.3f", share, loss.item(), penalty.item()
    )
    return share
