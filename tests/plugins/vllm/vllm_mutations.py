"""Faults to plant in a running plug-in, one at a time: each replaces functions of `torch_ops`, and puts them back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import ddbench.plugins.vllm.torch_ops as ops

Replacements = dict[tuple[Any, str], Callable[..., Any]]


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """While it is open, the fault is in the loaded modules."""
    faults: Replacements = {} if name is None else FAULTS[name]()
    kept = {place: getattr(*place) for place in faults}
    for (module, attribute), fault in faults.items():
        setattr(module, attribute, fault)
    try:
        yield
    finally:
        for (module, attribute), original in kept.items():
            setattr(module, attribute, original)


def nothing(*args: Any, **kwargs: Any) -> None:
    """In place of a step that is left out."""


def no_mask() -> Replacements:
    """Nodes see every node before them, as the tokens of a chain would."""
    visible = ops.visible
    return {(ops, "visible"): lambda state, row, queries, length: visible(None, row, queries, length)}


def no_depth() -> Replacements:
    """Tokens are placed, positions stay those of a chain."""
    apply = ops.apply_trees

    def tokens_only(state: Any, rows: int, bounds: Tensor, positions: Tensor, input_ids: Tensor | None) -> None:
        apply(state, rows, bounds, positions.clone(), input_ids)

    return {(ops, "apply_trees"): tokens_only, (ops, "restore_positions"): nothing}


def no_compaction() -> Replacements:
    return {(ops, "move_kv"): nothing}


def no_gather() -> Replacements:
    return {(ops, "gather_rows"): nothing}


def mended_context_norm() -> Replacements:
    """No fault but its opposite: stock vLLM's CPU build norms every layer's context keys by the first's weight."""
    from vllm.model_executor.models.qwen3_dflash import DFlashQwen3Model

    def normalize(self: Any, keys: Tensor) -> Tensor:  # [layers, tokens, kv_heads, head_size]
        scale = keys.pow(2).mean(-1, keepdim=True).add(self._rms_norm_eps).rsqrt()
        return keys * scale * self._k_norm_weights[:, None, None]

    return {(DFlashQwen3Model, "_normalize_context_k"): normalize}


def accept_when_likely() -> Replacements:
    """A wrong rule of acceptance: a drafted token is taken whenever the target gives it more than 0.3."""
    return _forced(lambda place, probability, drafted: probability > 0.3)


def accept_by_ratio() -> Replacements:
    """A wrong rule: the best child with probability min(1, p / q), as if drawn from q; else a draw from p."""
    generator = torch.Generator().manual_seed(0)

    def rule(place: int, probability: float, drafted: float) -> bool:
        return place == 0 and float(torch.rand((), generator=generator)) < probability / drafted

    return _forced(rule)


def _forced(rule: Callable[[int, float, float], bool]) -> Replacements:
    """Replaces the target's draw after a node by that node's child, where ``rule(place, p, q)`` says so.

    ``place`` counts the children of a node from the best; p and q are the target's and the drafter's probability.
    """
    import ddbench.plugins.vllm.runner as runner

    choose, walk, write = runner.choose, ops.walk, ops.write_trees
    seen: dict[str, Tensor] = {}
    drafts: dict[int, Tensor] = {}

    def remember(logits: Tensor, sampling: Any, counts: list[int]) -> Tensor:
        temperature = torch.repeat_interleave(sampling.temperature, torch.tensor(counts) + 1)[:, None]
        seen["probs"] = (logits.float() / temperature).softmax(-1)
        return choose(logits, sampling, counts)

    def write_trees(state: Any, options: Any, log_probs: Tensor, ids: Tensor, slots: Tensor) -> Tensor:
        drafts.update({int(slot): log_probs[row].exp() for row, slot in enumerate(slots)})
        return write(state, options, log_probs, ids, slots)

    def forced_walk(state: Any, rows: int, choices: Tensor, ends: Tensor, emitted: Tensor, *rest: Tensor) -> None:
        begins = [0, *ends.tolist()]
        for row in range(rows):
            slot, count = int(state.row_slot[row]), int(state.row_drafts[row])
            places: dict[int, int] = {}
            taken: set[int] = set()
            for node in range(count if slot >= 0 else 0):
                parent, token = int(state.parents[slot, node]), int(state.tokens[slot, node])
                if parent < 0:
                    continue
                place = places[parent] = places.get(parent, -1) + 1
                depth = int(state.depths[slot, node]) - 1
                drafted = float(drafts[slot][depth, place])
                if parent not in taken and rule(place, float(seen["probs"][begins[row] + parent, token]), drafted):
                    choices[begins[row] + parent] = token
                    taken.add(parent)
        walk(state, rows, choices, ends, emitted, *rest)

    return {(runner, "choose"): remember, (ops, "walk"): forced_walk, (ops, "write_trees"): write_trees}


FAULTS: dict[str, Callable[[], Replacements]] = {
    "no mask": no_mask,
    "no depth positions": no_depth,
    "no compaction": no_compaction,
    "no gather": no_gather,
    "accepts when likely": accept_when_likely,
    "accepts by ratio": accept_by_ratio,
    "context keys normed layer by layer": mended_context_norm,
}
