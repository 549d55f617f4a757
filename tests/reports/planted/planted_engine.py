"""SYNTHETIC: an engine whose acceptance and cost are known, so that the true answer of every comparison is known too.

A prompt has a skill p, uniform in :data:`SKILL`: the chance that a drafted token is right. A chain keeps drafted tokens
until the first wrong one, at most :data:`DEPTH`; a tree holds two candidates a position, so that its chance is
1 - (1 - p)^2. A request has a random number of decode tokens, the same in all arms and blocks as at temperature 0; its
last round is cut. A round, and without speculation a token, takes the arm's :data:`COST_S`, times noise of mean 1 of
its request, times the mood of that start of the engine, the same for a whole block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddbench.metrics import Counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PROMPTS = 40
SKILL = (0.3, 0.9)
DEPTH = {"dflash": 7, "ddtree": 7}
NODES = {"dflash": 7, "ddtree": 14}
LEAST_TOKENS, MEAN_MORE, MOST_TOKENS = 8, 24, 64  # decode tokens of a request
COST_S = {"autoregressive": 0.010, "dflash": 0.012, "ddtree": 0.015}
TTFT_S = 0.02
REQUEST_NOISE = 0.05  # standard deviation of the logarithm of a request's seconds
START_NOISE = 0.03  # the same of an engine's start
ARMS = tuple(COST_S)


@dataclass(frozen=True)
class Draws:
    """Independent experiments: tokens and, by arm, rounds [draws, prompts] and seconds [draws, blocks, prompts].

    ``histograms`` [draws, prompts, depth + 1] count rounds by accepted tokens, before clipping.
    """

    tokens: Ints  # from decoding
    rounds: dict[str, Ints]
    histograms: dict[str, Ints]
    seconds: dict[str, Floats]

    def counts(self, arm: str, draw: int, block: int) -> Counts:
        """One cell's requests, one after another (batch size 1)."""
        tokens, rounds, histogram = self.tokens[draw], self.rounds[arm][draw], self.histograms[arm][draw]
        raw = histogram @ np.arange(histogram.shape[1])
        latency = TTFT_S + self.seconds[arm][draw, block]
        kept = np.minimum(raw, np.maximum(tokens - rounds + 1, 0)) if arm in NODES else 0 * tokens
        counted = (tokens + 1, rounds, rounds * NODES.get(arm, 0), kept, raw, histogram)
        start = np.cumsum(latency) - latency
        return Counts(*(each.astype(np.float64) for each in counted), start, np.full(PROMPTS, TTFT_S), latency)


def simulate(draws: int, blocks: int, seed: int) -> Draws:
    """Draws of :data:`PROMPTS` prompts each."""
    rng = np.random.default_rng(seed)
    skill = rng.uniform(*SKILL, (draws, PROMPTS))
    tokens = np.minimum(LEAST_TOKENS + rng.geometric(1 / MEAN_MORE, skill.shape) - 1, MOST_TOKENS)
    rounds, histograms = (
        {"autoregressive": np.zeros_like(tokens)},
        {"autoregressive": np.zeros((*tokens.shape, 1), dtype=np.int64)},
    )
    for arm, depth in DEPTH.items():
        rounds[arm], histograms[arm] = _rounds(tokens, _chance(arm, skill), depth, rng)
    seconds = {}
    for arm in ARMS:
        steps = tokens if arm == "autoregressive" else rounds[arm]
        noise = np.exp(REQUEST_NOISE * rng.standard_normal((draws, blocks, PROMPTS)) - REQUEST_NOISE**2 / 2)
        start = np.exp(START_NOISE * rng.standard_normal((draws, blocks, 1))) if blocks > 1 else 1.0
        seconds[arm] = COST_S[arm] * steps[:, None] * noise * start
    return Draws(tokens, rounds, histograms, seconds)


def truth() -> dict[str, float]:
    """The exact values: expectations over skill and length, the rounds of a request by recursion over its tokens."""
    lengths = np.arange(LEAST_TOKENS, MOST_TOKENS + 1)
    chance = (1 - 1 / MEAN_MORE) ** (lengths - LEAST_TOKENS) / MEAN_MORE
    chance[-1] = 1 - chance[:-1].sum()
    tokens = float(chance @ lengths)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    skill = SKILL[0] + (nodes + 1) / 2 * (SKILL[1] - SKILL[0])
    rounds = {arm: float(weights / 2 @ _expected(_chance(arm, skill), depth) @ chance) for arm, depth in DEPTH.items()}
    steps = {"autoregressive": tokens, **rounds}
    rate = {arm: tokens / (COST_S[arm] * steps[arm]) for arm in ARMS}
    return {
        "acceptance_length": tokens / rounds["ddtree"],
        "acceptance_difference_vs_dflash": tokens / rounds["ddtree"] - tokens / rounds["dflash"],
        "tokens_per_s_per_user": rate["ddtree"],
        "speedup_vs_autoregressive": rate["ddtree"] / rate["autoregressive"],
        "speedup_vs_dflash": rate["ddtree"] / rate["dflash"],
    }


def _chance(arm: str, skill: Floats) -> Floats:
    return skill if arm == "dflash" else 1 - (1 - skill) ** 2


def _rounds(tokens: Ints, chance: Floats, depth: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Rounds of each request, and its histogram of accepted tokens."""
    left, rounds = tokens.copy(), np.zeros_like(tokens)
    histogram = np.zeros((*tokens.shape, depth + 1), dtype=np.int64)
    while (left > 0).any():
        accepted = np.minimum(rng.geometric(1 - chance) - 1, depth)
        active = left > 0
        histogram[(*np.nonzero(active), accepted[active])] += 1
        rounds += active
        left = left - np.where(active, accepted + 1, 0)
    return rounds, histogram


def _expected(chance: Floats, depth: int) -> Floats:
    """Expected rounds of a request by skill and length: [skills, lengths]."""
    kept = np.arange(depth + 1)
    law = np.where(kept < depth, (1 - chance[:, None]) * chance[:, None] ** kept, chance[:, None] ** depth)
    rounds = np.zeros((len(chance), MOST_TOKENS + 1))
    for left in range(1, MOST_TOKENS + 1):
        after = np.maximum(left - 1 - kept, 0)
        rounds[:, left] = 1 + (law * rounds[:, after]).sum(axis=1)
    return rounds[:, LEAST_TOKENS:]
