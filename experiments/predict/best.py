"""What a surface says: the best shape of each batch size with its margin, and where speculation stops paying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.predict.surface import Predicted, Shape
from reports.crossover import crossovers


@dataclass(frozen=True)
class Best:
    """The fastest shape of a batch size by tokens/s per user.

    ``next``: the fastest of all others; ``margin``: how much faster the best is, relative; ``margin_over``: the same
    over the best of every other strategy. None where there is no other.
    """

    batch_size: int
    temperature: float
    shape: Shape
    speed: float
    next: Shape | None
    margin: float | None
    margin_over: dict[str, float]


def best(points: Sequence[Predicted]) -> list[Best]:
    """One a batch size and temperature that has numbers."""
    places = dict.fromkeys((each.temperature, each.batch_size) for each in points)
    found = []
    for temperature, batch in sorted(places):
        mine = [each for each in points if (each.temperature, each.batch_size) == (temperature, batch)]
        told = [(each.shape, each.tokens_per_s_per_user) for each in mine]
        ranked = sorted(((shape, speed) for shape, speed in told if speed is not None), key=lambda pair: -pair[1])
        if not ranked:
            continue
        (shape, speed), *others = ranked
        over: dict[str, float] = {}
        for other, slower in others:
            if other.strategy != shape.strategy:
                over.setdefault(other.strategy, speed / slower - 1)
        following = others[0] if others else None
        margin = speed / following[1] - 1 if following else None
        found.append(Best(batch, temperature, shape, speed, following[0] if following else None, margin, over))
    return found


@dataclass(frozen=True)
class Pays:
    """Where the best shape of a strategy crosses autoregressive decoding, over batch size.

    ``crossings``: (batch size, interpolated; whether it pays after it). ``always``: whether it pays at the smallest
    batch size, which holds for all where there is no crossing.
    """

    strategy: str
    temperature: float
    sizes: tuple[int, ...]
    ratios: tuple[float, ...]
    crossings: tuple[tuple[float, bool], ...]
    always: bool


def pays(points: Sequence[Predicted]) -> list[Pays]:
    """For every strategy but the baseline: the best of its shapes at each batch size over autoregressive decoding."""
    found = []
    for strategy, temperature in dict.fromkeys((each.shape.strategy, each.temperature) for each in points):
        if strategy == "autoregressive":
            continue
        tops: dict[int, float] = {}
        for each in points:
            value = each.speedup_vs_autoregressive
            if (each.shape.strategy, each.temperature) == (strategy, temperature) and value is not None:
                tops[each.batch_size] = max(value, tops.get(each.batch_size, 0.0))
        if not tops:
            continue
        sizes = tuple(sorted(tops))
        ratios = tuple(tops[size] for size in sizes)
        passed = tuple((each.at, each.rises) for each in crossovers(sizes, ratios))
        found.append(Pays(strategy, temperature, sizes, ratios, passed, ratios[0] >= 1))
    return found
