"""What one measurement of an engine gives: a round time, a speed, and what vLLM's counters say of acceptance."""

from __future__ import annotations

import statistics
from typing import Any

from experiments.vllm_evidence.fleet import Engine
from runners.base import EngineFailure
from runners.counts import SpecCounters

ROUNDS = 30
FIRST = 6  # steps that are not counted


def round_ms(engine: Engine, prompts: list[list[int]], rounds: int = ROUNDS) -> float:
    """Milliseconds a round: the median time between two steps of the engine in which every sequence got tokens.

    The first steps, in which prompts are read, are left out; whatever single steps wait for (a kernel that is
    compiled, a garbage collection) does not move the median. Raises EngineFailure where there is no such step.
    """
    params = {"temperature": 0.0, "max_tokens": FIRST + rounds, "ignore_eos": True}
    answer = engine.ask(prompts=prompts, params=params, in_flight=len(prompts), steps=True)
    steps: list[float] = answer["steps_s"][FIRST:]
    if not steps:
        raise EngineFailure(
            f"{engine.arm.name}: never ran all of {len(prompts)} sequences in one step; cache too small?"
        )
    return 1000 * statistics.median(steps)


def tokens_per_s(engine: Engine, prompts: list[list[int]], in_flight: int, length: int) -> tuple[float, dict[str, Any]]:
    """Output tokens a second of a closed loop over ``prompts``, prefills included, and the engine's answer."""
    params = {"temperature": 0.0, "max_tokens": length, "ignore_eos": True}
    answer = engine.ask(prompts=prompts, params=params, in_flight=in_flight)
    made = sum(len(one) for sequences in answer["tokens"] for one in sequences)
    return made / answer["seconds"], answer


def acceptance_length(counters: dict[str, float]) -> float | None:
    """1 + accepted / drafts, as vLLM's counters have them; None without drafts."""
    drafts = counters.get("spec_decode_num_drafts", 0.0)
    return 1 + counters["spec_decode_num_accepted_tokens"] / drafts if drafts else None


def histogram(counters: dict[str, float]) -> list[int]:
    """[a] = rounds that accepted a tokens, from vLLM's counts by position."""
    places = {int(name.removeprefix("position_")): int(n) for name, n in counters.items() if "position_" in name}
    by_position = tuple(places[place] for place in sorted(places))
    drafts = int(counters.get("spec_decode_num_drafts", 0))
    return SpecCounters(drafts, by_position=by_position).histogram or [0]
