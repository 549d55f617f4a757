"""The same pair and prompts on the built-in reference engine, in exact float32: what an engine must agree with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddbench.decoding import Generation, Request, Sampling, Strategy, decode, load_pair
from runners.tables import histogram


def decode_all(assets: Path, prompts: list[list[int]], length: int, device: str) -> dict[str, dict[str, Any]]:
    """Greedy tokens, rounds of each prompt, acceptance histogram and acceptance length before clipping, by arm name.

    Stops where the engines stop: at the end token of the target's configuration.
    """
    pair = load_pair(str(assets / "target"), str(assets / "dflash"), device=device, dtype="float32")
    end = frozenset([int(pair.target.config.eos_token_id)])
    requests = [Request(str(i), tuple(ids), length, Sampling(), end) for i, ids in enumerate(prompts)]
    strategies = {
        "autoregressive": Strategy("autoregressive"),
        "dflash": Strategy("dflash"),
        "ddtree": Strategy("ddtree", nodes=63),
        "ddtree_spine": Strategy("ddtree", nodes=15, width=1),
    }
    return {name: _record(decode(pair, strategy, requests, 32)) for name, strategy in strategies.items()}


def _record(generations: list[Generation]) -> dict[str, Any]:
    accepted = [round.accepted_raw for generation in generations for round in generation.rounds]
    return {
        "tokens": [list(generation.output_token_ids) for generation in generations],
        "rounds": [len(generation.rounds) for generation in generations],
        "histogram": histogram(accepted),
        "acceptance_length": 1 + sum(accepted) / len(accepted) if accepted else None,
    }
