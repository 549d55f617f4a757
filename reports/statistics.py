"""Intervals: what is resampled, by how many blocks of repetition there are. ``docs/statistics.md`` says why.

Stored sums come as a cube [blocks, prompts, terms]; the prompt is the unit, so its turns and repeats are summed before
anything is drawn, and a comparison has both arms' terms side by side, drawn together. A quantity is a function of the
sums over blocks and prompts, worked with on a scale on which it is nearly normal (a ratio: its logarithm):

* one block: percentile bootstrap over prompts, widened about the point estimate by
  ``t(n - 1) / z * sqrt(n / (n - 1))``. The plain percentile interval of n prompts is too narrow by that factor
  (Hesterberg, "What teachers should know about the bootstrap", 2015).
* two to five blocks: t. Variance = that between prompts (linearised, of the sums over blocks) + that between the
  blocks' own values / blocks, with Welch-Satterthwaite degrees of freedom, and never narrower than the t interval of
  blocks alone.
* six blocks or more: bootstrap of blocks and, within, of prompts. All blocks measure the same prompts, so one draw of
  prompts serves all blocks of a resample (Owen, "The pigeonhole bootstrap", 2007); drawing them anew in each block
  would pretend that there are blocks x prompts of them. Widened as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from reports.quantities import Floats, Product, Quantity

RESAMPLES = 10_000
SEED = 20_260_101
LEVEL = 0.95
BOOTSTRAP_BLOCKS = 6  # from so many on, blocks are resampled; fewer get a t interval
TAIL = (1 - LEVEL) / 2
ROUNDING = 1e-12  # an offset below this is none: equal arms have the interval [1, 1]
FEW_UNITS = 256  # whose weights are kept ready
CHUNK = 2_000_000  # numbers in one piece of a resampled cube


@dataclass(frozen=True)
class Estimate:
    """A value with its interval. ``low`` and ``high`` are None where there is no replicate: a point without a bar.

    ``n`` counts the units behind it (prompts, of a throughput blocks), ``method`` says what the interval is over.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int
    method: str | None = None

    def without_bar(self, method: str | None = None) -> Estimate:
        """The value alone, where its interval would claim too much."""
        return Estimate(self.value, None, None, self.n, method)

    def columns(self, name: str) -> dict[str, float | None]:
        """Value and interval as three columns."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def excludes(self, value: float) -> bool:
        """Whether the interval exists and lies to one side of ``value``."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high

    @property
    def verdict(self) -> str | None:
        """Of a ratio: ``faster``, ``slower`` or, where the interval contains 1, ``not distinguishable``."""
        if self.low is None or self.high is None:
            return None
        if not self.excludes(1.0):
            return "not distinguishable"
        return "faster" if self.low > 1 else "slower"


NOTHING = Estimate(None, None, None, 0)


@lru_cache(maxsize=16)
def resampling_weights(units: int, resamples: int, seed: int) -> NDArray[np.int16]:
    """How often each of ``units`` is drawn in each resample: [resamples, units], every row sums to ``units``."""
    rng = np.random.default_rng([seed, units])
    return rng.multinomial(units, np.full(units, 1.0 / units), size=resamples).astype(np.int16)


def bootstrap(
    sums: Floats, powers: tuple[int, ...], scale: float = 1.0, resamples: int = RESAMPLES, seed: int = SEED
) -> Estimate:
    """``scale * prod_j (sum_i sums[i, j]) ** powers[j]`` with its 95 % interval over the rows of ``sums``, one block.

    ``sums`` is [units, terms], non-negative. The value is None where a denominator is 0; a value of 0 has no interval.
    """
    return intervals(sums[None], [Product(powers, scale)], resamples=resamples, seed=seed)[0]


def intervals(
    cube: Floats,
    quantities: Sequence[Quantity],
    one_clock: bool = False,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> list[Estimate]:
    """Each quantity of ``cube`` [blocks, prompts, terms] with its 95 % interval; ``n`` counts prompts.

    ``one_clock``: the prompts of a block are one observation, so that blocks are the only replicates.
    """
    blocks, n, _ = cube.shape
    totals = cube.sum(axis=(0, 1))
    values = [quantity.at(totals) if n and quantity.exists(totals) else None for quantity in quantities]
    replicated = blocks > 1 if one_clock else n > 1
    barred = [i for i, quantity in enumerate(quantities) if replicated and n and quantity.has_bar(totals)]
    chosen = [quantities[i] for i in barred]
    if one_clock or 1 < blocks < BOOTSTRAP_BLOCKS:
        offsets = [_t_offsets(cube, quantity, one_clock) for quantity in chosen]
    else:
        offsets = _bootstrap_offsets(cube, chosen, resamples, seed)
    estimates = [Estimate(value, None, None, n) for value in values]
    for i, found in zip(barred, offsets, strict=True):
        value = values[i]
        if found is None or value is None:
            continue
        low, high = (quantities[i].shifted(value, offset if abs(offset) > ROUNDING else 0.0) for offset in found)
        estimates[i] = Estimate(value, low, high, n, _method(blocks, one_clock))
    return estimates


def _method(blocks: int, one_clock: bool) -> str:
    """What an interval is over, in words."""
    if one_clock:
        return f"t over {blocks} blocks"
    if blocks == 1:
        return "bootstrap over prompts, 1 block"
    kind = "t" if blocks < BOOTSTRAP_BLOCKS else "bootstrap"
    return f"{kind} over {blocks} blocks and prompts"


Offsets = tuple[float, float] | None  # of an interval's ends from the point estimate, on the working scale


def _t_offsets(cube: Floats, quantity: Quantity, one_clock: bool) -> Offsets:
    """From the variances between prompts and between blocks."""
    blocks, n, _ = cube.shape
    of_blocks = cube.sum(axis=1)
    if not all(quantity.has_bar(totals) for totals in of_blocks):
        return None
    between_blocks = float(np.var(quantity.working(of_blocks), ddof=1)) / blocks
    between_prompts = 0.0 if one_clock else _prompt_variance(cube, quantity)
    half = t_quantile(blocks - 1) * float(np.sqrt(between_blocks))
    total = between_prompts + between_blocks
    if total > 0:
        freedom = total**2 / (between_prompts**2 / max(n - 1, 1) + between_blocks**2 / (blocks - 1))
        half = max(half, t_quantile(freedom) * float(np.sqrt(total)))
    return -half, half


def _prompt_variance(cube: Floats, quantity: Quantity) -> float:
    """Variance of the quantity from the choice of prompts: linearised (delta method), on the working scale."""
    of_prompts = cube.sum(axis=0)
    n = len(of_prompts)
    influence = of_prompts @ quantity.gradient(of_prompts.sum(axis=0))
    return float(n * np.var(influence, ddof=1)) if n > 1 else 0.0


def _bootstrap_offsets(cube: Floats, quantities: Sequence[Quantity], resamples: int, seed: int) -> list[Offsets]:
    """Percentiles over resamples, widened for few units."""
    if not quantities:
        return []
    totals = resampled_totals(cube, resamples, seed)
    point = cube.sum(axis=(0, 1))
    return [
        _percentiles(totals, quantity, quantity.working(point), _stretch(cube, quantity)) for quantity in quantities
    ]


def _percentiles(totals: Floats, quantity: Quantity, centre: float, stretch: float) -> Offsets:
    with np.errstate(divide="ignore", invalid="ignore"):
        values = quantity.working(totals)
    values = values[~np.isnan(values)]  # 0 / 0 says nothing
    if len(values) == 0:
        return None
    # Between an infinity and a number there is nothing to interpolate: then the order statistics themselves.
    kind = "linear" if np.isfinite(values).all() else "inverted_cdf"
    low, high = np.quantile(values, [TAIL, 1 - TAIL], method=kind)  # type: ignore[call-overload]
    if high == np.inf:
        return None  # too often nothing in the denominator: no bound above
    return float((low - centre) * stretch), float((high - centre) * stretch)


@lru_cache(maxsize=8)
def _ready_weights(units: int, resamples: int, seed: int) -> Floats:
    """The weights of few units as the matrix product takes them."""
    return resampling_weights(units, resamples, seed).astype(np.float64)


def resampled_totals(cube: Floats, resamples: int, seed: int) -> Floats:
    """Sums over blocks and prompts in each resample: [resamples, terms]. One block is always drawn itself."""
    blocks, n, terms = cube.shape
    if blocks == 1 and n <= FEW_UNITS:
        totals: Floats = _ready_weights(n, resamples, seed) @ cube[0]
        return totals
    prompts = resampling_weights(n, resamples, seed)
    step = max(CHUNK // (n * terms if blocks > 1 else n), 1)
    flat = cube.reshape(blocks, n * terms)
    parts = []
    for start in range(0, resamples, step):
        drawn = prompts[start : start + step].astype(np.float64)
        if blocks == 1:
            parts.append(drawn @ cube[0])
            continue
        of_blocks = resampling_weights(blocks, resamples, seed + 1)[start : start + step].astype(np.float64)
        parts.append(np.einsum("rn,rnt->rt", drawn, (of_blocks @ flat).reshape(-1, n, terms)))
    return np.concatenate(parts)


def _stretch(cube: Floats, quantity: Quantity) -> float:
    """How much wider than its percentile interval an interval over few units must be.

    The bootstrap's own variance is (n - 1) / n of the prompts' part and (b - 1) / b of the blocks'; degrees of freedom
    follow Welch-Satterthwaite, which is n - 1 with one block.
    """
    blocks, n, _ = cube.shape
    if blocks == 1:
        return float(t_quantile(n - 1) / stats.norm.ppf(1 - TAIL) * np.sqrt(n / (n - 1)))
    each = quantity.working(cube.sum(axis=1))
    prompts = _prompt_variance(cube, quantity)
    between = float(np.var(each, ddof=1)) / blocks if np.isfinite(each).all() else 0.0
    total = prompts + between
    if total == 0:
        return 1.0
    freedom = total**2 / (prompts**2 / (n - 1) + between**2 / (blocks - 1))
    shrunk = prompts * (n - 1) / n + between * (blocks - 1) / blocks
    return float(t_quantile(freedom) / stats.norm.ppf(1 - TAIL) * np.sqrt(total / shrunk))


@lru_cache(maxsize=4096)
def t_quantile(freedom: float) -> float:
    """Upper 2.5 % point of Student's t."""
    return float(stats.t.ppf(1 - TAIL, freedom))


def t_half_width(values: Floats) -> float:
    """Half the 95 % t interval of the mean of two or more replicates."""
    n = len(values)
    return float(t_quantile(n - 1) * np.std(values, ddof=1) / np.sqrt(n))


def ratio_of_replicates(value: float | None, pairs: list[tuple[float, float]]) -> Estimate:
    """A ratio whose interval comes from the log ratios of paired replicates (t); ``value`` is the pooled ratio."""
    if value is None:
        return NOTHING
    if len(pairs) < 2:
        return Estimate(value, None, None, len(pairs), "n = 1 block" if len(pairs) == 1 else None)
    logs = np.log([a / b for a, b in pairs])
    half = t_half_width(logs)
    bounds = value * float(np.exp(-half)), value * float(np.exp(half))
    return Estimate(value, *bounds, len(pairs), f"t over {len(pairs)} blocks")


def sign_test(ratios: Floats) -> float | None:
    """Two-sided exact binomial p of as many values above 1 as found, were above and below equally likely.

    Values of exactly 1 say nothing and are left out; None where none is left.
    """
    above, below = int((ratios > 1).sum()), int((ratios < 1).sum())
    return float(stats.binomtest(above, above + below).pvalue) if above + below else None


def cluster_sums(units: Any, terms: Floats) -> tuple[list[str], Floats]:
    """Sums of ``terms`` [rows, terms] by unit (prompt), units in sorted order: (names, [units, terms])."""
    names, inverse = np.unique(np.asarray(units, dtype=str), return_inverse=True)
    totals = np.zeros((len(names), terms.shape[1]))
    np.add.at(totals, inverse, terms)
    return [str(name) for name in names], totals
