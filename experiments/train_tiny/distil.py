"""Self-distillation that makes the target's text draftable, as large instruction-tuned targets' text is.

A small model trained on raw source code writes text whose every choice is a near-tie; no parallel drafter can follow
it. Sequence-level distillation is the known cure for parallel decoders (Kim & Rush 2016; Zhou et al. 2020,
"Understanding knowledge distillation in non-autoregressive machine translation"). Each round: for every training prompt
one greedy and several sampled continuations of the target; the one that the drafter follows furthest, loops left out,
becomes the text that the target is tuned on, while the drafter learns beside it and its gradient also reaches the
target's features. A language-model batch of real text holds the target in place.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from ddbench.drafters.dflash import DFlashDrafter
from experiments.train_tiny.config import DFlashTrainConfig, DistilConfig
from experiments.train_tiny.dflash import BlockLoss, block_loss_for, draw_blocks
from experiments.train_tiny.features import tapped_states
from experiments.train_tiny.generate import Continuations
from experiments.train_tiny.loops import repeated_share
from experiments.train_tiny.optim import adamw, set_learning_rate
from experiments.train_tiny.pace import paced
from experiments.train_tiny.target import next_token_loss, outputs_of, sample_rows

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Distiller:
    """What all rounds share. ``end_id`` closes a text."""

    model: PreTrainedModel
    drafter: DFlashDrafter
    config: DistilConfig
    dflash: DFlashTrainConfig
    loss_of: BlockLoss
    end_id: int

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        drafter: DFlashDrafter,
        config: DistilConfig,
        dflash: DFlashTrainConfig,
        end_id: int,
    ) -> Distiller:
        return cls(model, drafter, config, dflash, block_loss_for(dflash), end_id)

    def choose(self, candidates: Continuations, generator: torch.Generator) -> Continuations:
        """Of every ``config.candidates`` neighbouring rows (one prompt) the one followed furthest; loops never."""
        score = self._followed(candidates, generator)
        shares = torch.tensor([repeated_share(row) for row in outputs_of(candidates)], device=score.device)
        score = score.masked_fill(shares > self.config.max_repeated, -1.0)
        best = score.view(-1, self.config.candidates).max(dim=1)
        rows = torch.arange(len(best.indices), device=score.device) * self.config.candidates + best.indices
        rows = rows[best.values >= 0]
        log.info(
            "distil: greedy %.3f, chosen %.3f drafts followed", *_means(score, best.values, self.config.candidates)
        )
        return Continuations(candidates.tokens[rows], candidates.prompt_tokens[rows], candidates.ends[rows])

    @torch.no_grad()
    def _followed(self, data: Continuations, generator: torch.Generator) -> Tensor:
        """Mean drafts accepted at random anchors of each row."""
        embedding, head = self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight
        found = []
        for start in range(0, len(data.tokens), self.dflash.batch):
            part = slice(start, start + self.dflash.batch)
            tokens = data.tokens[part].long()
            blocks = draw_blocks(
                tokens, data.prompt_tokens[part], data.ends[part], self.drafter.config, self.dflash.anchors, generator
            )
            with torch.autocast(tokens.device.type, torch.bfloat16):
                features = tapped_states(self.model, tokens, [tap + 1 for tap in self.dflash.taps])
                _, right = self.loss_of(self.drafter, embedding, head, features, blocks, self.dflash.gamma)
            found.append(right.long().cumprod(-1).sum(-1).float().mean(-1))
        return torch.cat(found)

    def tune(
        self, chosen: Continuations, stream: Tensor, row_tokens: int, generator: torch.Generator
    ) -> dict[str, float]:
        """One round of joint training; returns its last losses and its seconds."""
        config, device, began = self.config, stream.device, time.perf_counter()
        target_optimizer = adamw(self.model.parameters(), config.learning_rate, 0.0)
        drafter_optimizer = adamw(self.drafter.parameters(), self.dflash.learning_rate, 0.05)
        self.model.train()
        for turn in paced(config.steps, config.seconds, 1):
            set_learning_rate(target_optimizer, config.learning_rate, turn.place, config.steps)
            set_learning_rate(drafter_optimizer, self.dflash.learning_rate, turn.place, config.steps)
            pick = torch.randint(0, len(chosen.tokens), (self.dflash.batch,), generator=generator, device=device)
            tokens, first, ends = chosen.tokens[pick].long(), chosen.prompt_tokens[pick], chosen.ends[pick]
            blocks = draw_blocks(tokens, first, ends, self.drafter.config, self.dflash.anchors, generator)
            with torch.autocast(device.type, torch.bfloat16):
                states = self.model.base_model(input_ids=tokens, use_cache=False, output_hidden_states=True)
                features = torch.cat([states.hidden_states[tap + 1] for tap in self.dflash.taps], dim=-1)
                embedding, head = self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight
                drafting, _ = self.loss_of(
                    self.drafter, embedding.detach(), head.detach(), features, blocks, self.dflash.gamma
                )
                own = own_text_loss(states.last_hidden_state, head, tokens, first, ends)
                rows = sample_rows(stream, config.real_rows, row_tokens + 1, generator)
                real = next_token_loss(self.model, rows)
                loss = own + config.draft_weight * drafting + config.real_weight * real
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
            for optimizer in (target_optimizer, drafter_optimizer):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return {
            "steps": turn.step + 1,
            "own_text_loss": round(own.item(), 4),
            "draft_loss": round(drafting.item(), 4),
            "real_text_loss": round(real.item(), 4),
            "seconds": round(time.perf_counter() - began, 1),
        }


def own_text_loss(hidden: Tensor, head: Tensor, tokens: Tensor, first: Tensor, ends: Tensor) -> Tensor:
    """Next-token loss over the continuation alone, its end token included."""
    logits = functional.linear(hidden[:, :-1], head).float()
    where = torch.arange(1, tokens.shape[1], device=tokens.device)
    inside = (where >= first[:, None]) & (where < ends[:, None])
    losses = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return (losses.view_as(inside) * inside).sum() / inside.sum()


def _means(score: Tensor, best: Tensor, candidates: int) -> tuple[float, float]:
    greedy = score.view(-1, candidates)[:, 0]
    return greedy[greedy >= 0].mean().item(), best[best >= 0].mean().item()
