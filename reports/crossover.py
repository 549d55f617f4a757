"""Where a ratio over batch size crosses 1: the batch size at which a strategy stops, or starts, to pay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Crossover:
    """``at``: batch size, interpolated; ``rises``: whether the ratio is above 1 after it."""

    at: float
    rises: bool


def crossovers(sizes: Sequence[int], ratios: Iterable[float]) -> list[Crossover]:
    """Batch sizes at which ``ratios`` passes 1, interpolated between neighbouring measured sizes.

    ``sizes`` rise; ``ratios`` are positive, one a size. Both are taken as logarithms, so that a ratio that falls as a
    power of the batch size is met exactly. A ratio of exactly 1 counts as above. Nothing is said beyond the measured
    sizes.
    """
    points = [(math.log(size), math.log(ratio)) for size, ratio in zip(sizes, ratios, strict=True)]
    return [
        Crossover(math.exp(x + (after - x) * y / (y - later)), later >= 0)
        for (x, y), (after, later) in pairwise(points)
        if (y >= 0) != (later >= 0)
    ]
