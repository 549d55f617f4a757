"""Optimiser and schedule shared by the three trainings."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn


def adamw(parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with decay on matrices only."""
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    fused = bool(trained) and trained[0].is_cuda
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=fused)


def set_learning_rate(
    optimizer: torch.optim.Optimizer, peak: float, step: float, steps: int, warmup: float = 0.04
) -> None:
    """Linear warm-up over ``warmup`` of the steps, then a cosine to a twentieth of the peak."""
    ramp = max(1, int(warmup * steps))
    progress = min(1.0, max(0, step - ramp) / max(1, steps - ramp))
    scale = (step + 1) / ramp if step < ramp else 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))
    for group in optimizer.param_groups:
        group["lr"] = peak * scale
