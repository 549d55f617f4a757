"""A hybrid target and its drafter learn together from a finished pair.

On the teacher's own greedy text: its distribution at every position (Hinton et al. 2015), the text itself as labels of
the continuation (Kim & Rush 2016), and its features at the taps that the teacher's drafter reads, so that the drafter
taken over from it keeps its meaning. On real text: its distribution alone. The drafter's loss reaches the target too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ddbench.drafters.dflash import DFlashDrafter
from experiments.train_tiny.config import DFlashTrainConfig, TeacherConfig
from experiments.train_tiny.dflash import block_loss_for, draw_blocks
from experiments.train_tiny.distil import own_text_loss
from experiments.train_tiny.generate import Continuations
from experiments.train_tiny.optim import adamw, set_learning_rate
from experiments.train_tiny.pace import paced
from experiments.train_tiny.target import sample_rows
from experiments.train_tiny.validate import chain_acceptance

log = logging.getLogger(__name__)
NOTES = 10


@dataclass(frozen=True)
class Classroom:
    """The pair that learns, the teacher, and the texts."""

    model: PreTrainedModel
    drafter: DFlashDrafter
    teacher: PreTrainedModel
    lessons: Continuations  # the teacher's greedy continuations of training prompts
    validation: Continuations  # and of held-out ones
    stream: Tensor  # real text


@dataclass(frozen=True)
class Batch:
    """Lessons with where each continuation begins and ends, and rows of real text as long as they are."""

    tokens: Tensor
    first: Tensor
    ends: Tensor
    real: Tensor


def teach(
    room: Classroom,
    config: TeacherConfig,
    dflash: DFlashTrainConfig,
    seed: int,
    keep: Callable[[], None],
) -> list[dict[str, Any]]:
    """Trains ``room.model`` and ``room.drafter`` in place; ``keep`` saves them, each time an entry is noted down.

    An entry: step, the losses by name, the share of held-out tokens that the target would choose as the teacher did,
    tokens the chain emits per round on that text, seconds.
    """
    device = room.stream.device
    generator = torch.Generator(device).manual_seed(seed)
    loss_of = block_loss_for(dflash)
    optimizers = [
        (adamw(room.model.parameters(), config.learning_rate, 0.05), config.learning_rate),
        (adamw(room.drafter.parameters(), config.drafter_learning_rate, 0.05), config.drafter_learning_rate),
    ]
    weights = {"text": 1.0, "likeness": 1.0, "real_likeness": 1.0}
    weights |= {"features": config.feature_weight, "draft": config.draft_weight}
    history: list[dict[str, Any]] = []
    began = time.perf_counter()
    for turn in paced(config.steps, config.seconds, NOTES):
        room.model.train()
        for optimizer, peak in optimizers:
            set_learning_rate(optimizer, peak, turn.place, config.steps)
        pick = torch.randint(0, len(room.lessons.tokens), (config.batch,), generator=generator, device=device)
        tokens, first, ends = (part[pick].long() for part in _parts(room.lessons))
        blocks = draw_blocks(tokens, first, ends, room.drafter.config, dflash.anchors, generator)
        rows = sample_rows(room.stream, config.real_rows, tokens.shape[1], generator)
        with torch.autocast(device.type, torch.bfloat16):
            losses, features = _losses(room, Batch(tokens, first, ends, rows), config.taps, dflash.taps)
            embedding, head = room.model.get_input_embeddings().weight, room.model.get_output_embeddings().weight
            losses["draft"], _ = loss_of(
                room.drafter, embedding.detach(), head.detach(), features, blocks, dflash.gamma
            )
        torch.stack([weights[name] * loss for name, loss in losses.items()]).sum().backward()
        for part in (room.model, room.drafter):
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if turn.note:
            history.append(_entry(room, turn.step, losses, began))
            keep()
    if history[-1]["step"] != turn.step:
        history.append(_entry(room, turn.step, losses, began))
        keep()
    return history


def _parts(data: Continuations) -> tuple[Tensor, Tensor, Tensor]:
    return data.tokens, data.prompt_tokens, data.ends


def _losses(
    room: Classroom, batch: Batch, taught: Sequence[int], taps: Sequence[int]
) -> tuple[dict[str, Tensor], Tensor]:
    """The target's losses, and its features on the lessons for the drafter. One pass for lessons and real text."""
    lessons = len(batch.tokens)
    everything = torch.cat((batch.tokens, batch.real))
    states = room.model.base_model(input_ids=everything, use_cache=False, output_hidden_states=True)
    with torch.no_grad():
        lesson = room.teacher.base_model(input_ids=everything, use_cache=False, output_hidden_states=True)
    inside = torch.arange(everything.shape[1], device=everything.device) < batch.ends[:, None]
    own = [states.hidden_states[tap + 1][:lessons] for tap in taps]
    theirs = [lesson.hidden_states[tap + 1][:lessons] for tap in taught]
    distances = [_distance(a, b, inside) for a, b in zip(own, theirs, strict=True)]
    head, hidden = room.model.get_output_embeddings().weight, states.last_hidden_state
    divergence = _divergence(room, hidden, lesson.last_hidden_state)
    losses = {
        "text": own_text_loss(hidden[:lessons], head, batch.tokens, batch.first, batch.ends),
        "likeness": (divergence[:lessons] * inside).sum() / inside.sum(),
        "real_likeness": divergence[lessons:].mean(),
        "features": torch.stack(distances).mean(),
    }
    return losses, torch.cat(own, dim=-1)


def _divergence(room: Classroom, own: Tensor, theirs: Tensor) -> Tensor:
    """Kullback-Leibler divergence in nats of the target's next tokens from the teacher's, [rows, tokens]."""
    mine = functional.linear(own, room.model.get_output_embeddings().weight).float().log_softmax(-1)
    with torch.no_grad():
        lesson = functional.linear(theirs, room.teacher.get_output_embeddings().weight).float().log_softmax(-1)
    return functional.kl_div(mine, lesson, reduction="none", log_target=True).sum(-1)


def _distance(own: Tensor, theirs: Tensor, inside: Tensor) -> Tensor:
    """Squared distance of feature rows over the squared length of the teacher's, mean over positions ``inside``."""
    gap = (own.float() - theirs.float()).square().sum(-1)
    share = gap / theirs.float().square().sum(-1).clamp(min=1e-6)
    return (share * inside).sum() / inside.sum()


def _entry(room: Classroom, step: int, losses: dict[str, Tensor], began: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"step": step} | {name: round(loss.item(), 4) for name, loss in losses.items()}
    entry["seconds"] = round(time.perf_counter() - began, 1)
    entry["held_out_agreement"] = agreement(room.model, room.validation)
    entry["held_out_emitted_per_round"] = chain_acceptance(room.model, room.drafter, room.validation)
    log.info("teach %s", entry)
    return entry


@torch.no_grad()
def agreement(model: PreTrainedModel, data: Continuations) -> float:
    """Share of the continuations' tokens that ``model`` chooses greedily after the same tokens."""
    tokens = data.tokens.long()
    with torch.autocast(tokens.device.type, torch.bfloat16):
        chosen = model(input_ids=tokens[:, :-1], use_cache=False).logits.argmax(-1)
    where = torch.arange(1, tokens.shape[1], device=tokens.device)
    inside = (where >= data.prompt_tokens[:, None]) & (where < data.ends[:, None])
    return round(float(((chosen == tokens[:, 1:]) & inside).sum() / inside.sum()), 4)
