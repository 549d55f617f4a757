"""Arms of one GPU that take turns: interleaved repeats of a measurement, and what is made of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from experiments.evidence.timing import interleaved, repeats_for
from experiments.sglang_evidence.fleet import Engine, Fleet
from runners.base import EngineFailure

Measure = Callable[[Engine], float]


def take_turns(
    fleet: Fleet, names: Sequence[str], measure: Measure, repeats: int | None = None
) -> dict[str, list[float]]:
    """Values of each arm that answers, ABBA. A first turn warms up, and says how many there is time for.

    An arm that fails is lost to the fleet; the others go on.
    """
    values: dict[str, list[float]] = {}
    clock = time.perf_counter()
    for name in names:
        _one(fleet, name, measure)
    count = repeats or repeats_for(time.perf_counter() - clock)
    for order in interleaved([name for name in names if name in fleet.engines], count):
        for name in order:
            value = _one(fleet, name, measure)
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: found for name, found in values.items() if name in fleet.engines}


def _one(fleet: Fleet, name: str, measure: Measure) -> float | None:
    engine = fleet.engines.get(name)
    if engine is None:
        return None
    try:
        return measure(engine)
    except EngineFailure as failure:
        fleet.lose(engine, failure)
        return None


def ratios(values: dict[str, list[float]], one: str, other: str) -> list[float]:
    """Ratio of two arms in every repeat that both have."""
    return [a / b for a, b in zip(values[one], values[other], strict=False)]
