"""A/A: an arm compared with itself, pair by pair. Every difference found is false; 5 % of intervals should find one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from reports.baselines import paired, sign_p, speedup
from reports.frames import Stored
from reports.points import Point
from reports.statistics import LEVEL, t_half_width


@dataclass(frozen=True)
class FalsePositives:
    """What came of comparing an arm with itself.

    ``rate`` is the share of pairs whose 95 % interval of the speed-up excludes 1, with its own exact 95 % interval
    (Clopper-Pearson); ``sign_test_rate`` the share whose sign test gives p < 0.05. ``log_sd`` is the standard deviation
    over pairs of the logarithm of the speed-up: by how much two measurements of one arm differ. ``mean_ratio`` is the
    geometric mean of the speed-up with its t interval over pairs: 1 but for noise, since the order is ABBA.
    """

    pairs: int
    false_positives: int
    rate: float
    low: float
    high: float
    sign_test_false_positives: int
    sign_test_rate: float
    log_sd: float
    mean_ratio: float
    mean_ratio_low: float
    mean_ratio_high: float


def blocks_each(stored: Stored) -> int | None:
    """Blocks of repetition of one measurement; None for a run that is no A/A."""
    asked = stored.config.get("aa_check")
    return int(asked["blocks"]) if isinstance(asked, dict) and "blocks" in asked else None


def false_positives(stored: Stored, points: Sequence[Point]) -> FalsePositives | None:
    """Compares the measurements of each pair as two arms of a sweep; None with fewer than two pairs.

    Pairs of which a block failed, or whose comparison has no interval, are left out.
    """
    blocks = blocks_each(stored)
    if blocks is None:
        return None
    arms = [pair for point in points if point.measured for pair in _pairs(point, blocks)]
    found = [(speedup(second, first), paired(second, first)) for first, second in arms]
    kept = [(ratio, pair) for ratio, pair in found if pair is not None and ratio.value and ratio.low is not None]
    if len(kept) < 2:
        return None
    wrong = sum(ratio.excludes(1.0) for ratio, _ in kept)
    sign = sum((p := sign_p(pair)) is not None and p < 1 - LEVEL for _, pair in kept)
    bounds = stats.binomtest(wrong, len(kept)).proportion_ci(LEVEL, method="exact")
    logs = np.log([float(ratio.value or np.nan) for ratio, _ in kept])
    mean, half = float(logs.mean()), t_half_width(logs)
    return FalsePositives(
        pairs=len(kept),
        false_positives=wrong,
        rate=wrong / len(kept),
        low=float(bounds.low),
        high=float(bounds.high),
        sign_test_false_positives=sign,
        sign_test_rate=sign / len(kept),
        log_sd=float(logs.std(ddof=1)),
        mean_ratio=float(np.exp(mean)),
        mean_ratio_low=float(np.exp(mean - half)),
        mean_ratio_high=float(np.exp(mean + half)),
    )


def _pairs(point: Point, blocks: int) -> list[tuple[Point, Point]]:
    """The arm as two, a pair of measurements after another.

    Blocks were run in order and belong to the two in turn, ABBA: 0, 3, 4, 7, ... to the first; so many of each in a row
    make a pair.
    """
    found = []
    for start in range(0, max(point.block_ids) + 1, 2 * blocks):
        both = range(start, start + 2 * blocks)
        if set(both) <= set(point.block_ids):
            first = [block for block in both if block % 4 in (0, 3)]
            found.append((_only(point, first), _only(point, [block for block in both if block not in first])))
    return found


def _only(point: Point, blocks: list[int]) -> Point:
    """Some blocks of a point, numbered from 0 on, so that those of two measurements are partners."""
    requests = point.requests[point.requests["block"].isin(blocks)]
    numbers = {block: number for number, block in enumerate(blocks)}
    requests = requests.assign(block=requests["block"].map(numbers).astype("Int32"))
    counts = tuple(point.blocks[point.block_ids.index(block)] for block in blocks)
    return replace(point, requests=requests, blocks=counts, block_ids=tuple(range(len(blocks))))
