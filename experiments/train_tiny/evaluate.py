"""The quality bar: what the trained models reach on held-out prompts, measured with the reference engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ddbench.decoding import Generation, Request, Sampling, Strategy, decode, load_pair
from experiments.train_tiny.data import Prompt
from experiments.train_tiny.loops import distinct_ratio, is_loop

log = logging.getLogger(__name__)
NEW_TOKENS = 128
STRATEGIES = {
    "dflash_chain": Strategy("dflash"),
    "ddtree_16": Strategy("ddtree", nodes=16),
    "ddtree_32": Strategy("ddtree", nodes=32),
    "ddtree_64": Strategy("ddtree", nodes=64),
    "eagle3_chain_5": Strategy("eagle", width=1, depth=5, nodes=5),
    "eagle3_tree_5x4_24": Strategy("eagle", width=4, depth=5, nodes=24),
}


def evaluate(
    target: str, drafters: Path, prompts: Sequence[Prompt], device: str, end_ids: frozenset[int]
) -> dict[str, Any]:
    """Acceptance length (emitted per round, summed over prompts) of every strategy over prompts that do not loop."""
    torch.set_float32_matmul_precision("highest")  # losslessness is claimed for exact float32
    eagle = drafters / "eagle3" if (drafters / "eagle3").exists() else None
    pair = load_pair(target, dflash=drafters / "dflash", eagle=eagle, device=device)
    requests = [
        Request(f"{p.category}-{index}", p.token_ids, NEW_TOKENS, Sampling(), end_ids)
        for index, p in enumerate(prompts)
    ]
    batch = 64 if device.startswith("cuda") else 16
    plain = decode(pair, Strategy("autoregressive"), requests, batch)
    loops = [is_loop(g.output_token_ids) for g in plain]
    kept = [
        r for r, g, looped in zip(requests, plain, loops, strict=True) if not looped and len(g.output_token_ids) > 1
    ]
    same_text = {g.request.prompt_id: g.output_token_ids for g in plain}
    ratios = [ratio for g in plain if (ratio := distinct_ratio(g.output_token_ids)) is not None]
    result: dict[str, Any] = {
        "prompts": len(prompts),
        "new_tokens": NEW_TOKENS,
        "loop_share": round(sum(loops) / len(loops), 4),
        "stopped_share": round(sum(g.finish_reason == "stop" for g in plain) / len(plain), 4),
        "mean_output_tokens": round(sum(len(g.output_token_ids) for g in plain) / len(plain), 1),
        "distinct_token_ratio": round(sum(ratios) / len(ratios), 4),
        "acceptance_length": {},
    }
    for name, strategy in STRATEGIES.items():
        if strategy.name == "eagle" and eagle is None:
            continue
        done = decode(pair, strategy, kept, batch)
        result["acceptance_length"][name] = _lengths(done, kept) | {
            "lossless_share": _share([same_text[g.request.prompt_id] == g.output_token_ids for g in done])
        }
        log.info("%s %s", name, result["acceptance_length"][name])
    return result


def _lengths(done: Sequence[Generation], requests: Sequence[Request]) -> dict[str, Any]:
    """Over all prompts, and by category (the part of the prompt id before the dash)."""
    by_category: dict[str, list[Generation]] = {}
    for generation, request in zip(done, requests, strict=True):
        by_category.setdefault(request.prompt_id.partition("-")[0], []).append(generation)
    return {
        "all": _length(done),
        "by_category": {name: _length(group) for name, group in sorted(by_category.items())},
    }


def _length(done: Sequence[Generation]) -> float | None:
    rounds = sum(len(g.rounds) for g in done)
    return round(sum(len(g.output_token_ids) - 1 for g in done) / rounds, 3) if rounds else None


def _share(flags: Sequence[bool]) -> float | None:
    return round(sum(flags) / len(flags), 4) if flags else None
