"""What one measurement of an engine gives: a round time from the clocks of its streams, or tokens a second."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from experiments.sglang_evidence.fleet import Engine
from runners.base import EngineFailure

ROUNDS = 30
FIRST = 6  # steps that are not counted: prefills, and sequences that come in one after the other
FIRST_STEP = 2  # the same, of answers whose rounds emit many tokens and are few
SHORT = 0.9  # share of the longest request's events that a request must have to be counted


def round_ms(engine: Engine, prompts: list[list[int]], rounds: int = ROUNDS) -> float:
    """Milliseconds a round: the median time between two events of a stream, while all of the batch decode.

    With random weights nearly nothing is accepted, so all sequences go through the same rounds; the events of each
    are rounds. Raises EngineFailure where there is no such time.
    """
    params = {"temperature": 0.0, "max_new_tokens": FIRST + rounds, "ignore_eos": True}
    answer = engine.ask(prompts=prompts, params=params, in_flight=len(prompts), moments=True)
    if answer["errors"]:
        raise EngineFailure(f"{engine.name}: {answer['errors']}")
    gaps = steady_gaps(answer["moments"])
    if not gaps:
        raise EngineFailure(f"{engine.name}: never ran all of {len(prompts)} sequences at once; pool too small?")
    return 1000 * statistics.median(gaps)


def step_ms(engine: Engine, prompts: list[list[int]], length: int) -> float:
    """Milliseconds a step of answers of ``length`` tokens, however much of a draft each accepts: until the first ends.

    Raises EngineFailure where not all of the batch ever decode at once.
    """
    params = {"temperature": 0.0, "max_new_tokens": length, "ignore_eos": True}
    answer = engine.ask(prompts=prompts, params=params, in_flight=len(prompts), moments=True)
    if answer["errors"]:
        raise EngineFailure(f"{engine.name}: {answer['errors']}")
    gaps = steady_gaps(answer["moments"], first=FIRST_STEP, short=0.0)
    if not gaps:
        raise EngineFailure(f"{engine.name}: never ran all of {len(prompts)} sequences at once")
    return 1000 * statistics.median(gaps)


def steady_gaps(moments: Sequence[Sequence[float]], first: int = FIRST, short: float = SHORT) -> list[float]:
    """Seconds between events of the streams from when the last one has begun until the first one ends.

    Begun: with its event ``first``. Streams of fewer events than the share ``short`` of the longest one's end nothing.
    """
    begun = max((each[first] for each in moments if len(each) > first), default=math.inf)
    longest = max((len(each) for each in moments), default=0)
    ended = min((each[-1] for each in moments if len(each) >= short * longest), default=-math.inf)
    return [
        later - earlier
        for each in moments
        for earlier, later in itertools.pairwise(each)
        if begun <= earlier and later <= ended
    ]


def tokens_per_s(engine: Engine, prompts: list[list[int]], in_flight: int, length: int) -> tuple[float, dict[str, Any]]:
    """Output tokens a second of a closed loop over ``prompts``, prefills included, and the engine's answer."""
    params = {"temperature": 0.0, "max_new_tokens": length, "ignore_eos": True}
    answer = engine.ask(prompts=prompts, params=params, in_flight=in_flight)
    if answer["errors"]:
        raise EngineFailure(f"{engine.name}: {answer['errors']}")
    return sum(len(one) for one in answer["tokens"]) / answer["seconds"], answer
