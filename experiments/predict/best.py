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
    over the best of every other strategy. None where there is no other. ``extrapolated``: the best or the next lies
    outside of what the cost was measured in.
    """

    batch_size: int
    temperature: float
    shape: Shape
    speed: float
    next: Shape | None
    margin: float | None
    margin_over: dict[str, float]
    extrapolated: bool


def best(points: Sequence[Predicted]) -> list[Best]:
    """One a batch size and temperature that has numbers."""
    places = dict.fromkeys((each.temperature, each.batch_size) for each in points)
    found = []
    for temperature, batch in sorted(places):
        mine = [each for each in points if (each.temperature, each.batch_size) == (temperature, batch)]
        ranked = sorted(((each, _speed(each)) for each in mine if _speed(each)), key=lambda pair: -pair[1])
        if not ranked:
            continue
        (top, speed), *others = ranked
        over: dict[str, float] = {}
        for other, slower in others:
            if other.shape.strategy != top.shape.strategy:
                over.setdefault(other.shape.strategy, speed / slower - 1)
        following = others[0] if others else None
        margin = speed / following[1] - 1 if following else None
        after = following[0].shape if following else None
        outside = top.extrapolated or (following is not None and following[0].extrapolated)
        found.append(Best(batch, temperature, top.shape, speed, after, margin, over, outside))
    return found


def _speed(each: Predicted) -> float:
    """0 where there is no number."""
    return each.tokens_per_s_per_user or 0.0


@dataclass(frozen=True)
class Pays:
    """Where the best shape of a strategy crosses autoregressive decoding, over batch size.

    ``crossings``: (batch size, interpolated; whether it pays after it). ``always``: whether it pays at the smallest
    batch size, which holds for all where there is no crossing. ``extrapolated``: the sizes whose ratio is of a point or
    over one outside of what the cost was measured in.
    """

    strategy: str
    temperature: float
    sizes: tuple[int, ...]
    ratios: tuple[float, ...]
    crossings: tuple[tuple[float, bool], ...]
    always: bool
    extrapolated: tuple[int, ...]


def pays(points: Sequence[Predicted]) -> list[Pays]:
    """For every strategy but the baseline: the best of its shapes at each batch size over autoregressive decoding."""
    found = []
    plain = {
        (each.temperature, each.batch_size): each.extrapolated
        for each in points
        if each.shape.strategy == "autoregressive"
    }
    for strategy, temperature in dict.fromkeys((each.shape.strategy, each.temperature) for each in points):
        if strategy == "autoregressive":
            continue
        tops: dict[int, tuple[float, bool]] = {}
        for each in points:
            value = each.speedup_vs_autoregressive
            if (each.shape.strategy, each.temperature) == (strategy, temperature) and value is not None:
                outside = each.extrapolated or plain[temperature, each.batch_size]
                tops[each.batch_size] = max((value, outside), tops.get(each.batch_size, (0.0, False)))
        if not tops:
            continue
        sizes = tuple(sorted(tops))
        ratios = tuple(tops[size][0] for size in sizes)
        passed = tuple((each.at, each.rises) for each in crossovers(sizes, ratios))
        beyond = tuple(size for size in sizes if tops[size][1])
        found.append(Pays(strategy, temperature, sizes, ratios, passed, ratios[0] >= 1, beyond))
    return found
