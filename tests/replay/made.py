"""Made-up traces, and the slow obvious replay that the fast one must equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ddbench.decoding import Strategy
from ddbench.replay import Outcome, Trace, TraceSet
from ddbench.replay.trace import Key, ranks_of
from ddbench.tree import PADDING, ROOT, build_tree_heap


def trace(log_probs: np.ndarray, ranks: np.ndarray, prompt_id: str = "p", prompt_tokens: int = 3) -> Trace:
    """A request whose anchors have these offers; its tokens are of no interest."""
    anchors, depth, _ = log_probs.shape
    key = Key(prompt_id, 0, "made", "a", 0, 0, 0.0)
    output = np.arange(anchors + 1, dtype=np.int32)
    tail = np.arange(depth - 1, dtype=np.int32)
    return Trace(key, prompt_tokens, "length", 0, log_probs.astype(np.float32), ranks.astype(np.int16), output, tail)


def random_traces(
    seed: int, requests: int = 3, depth: int = 4, k: int = 6, step: float | None = None, ruled_out: float = 0.0
) -> TraceSet:
    """Traces of mixed lengths. ``step``: log-probabilities are rounded to it, so that many sums are equal.

    ``ruled_out``: share of candidates at -inf. Ranks are small ones more often.
    """
    rng = np.random.default_rng(seed)
    traces = []
    for number in range(requests):
        anchors = int(rng.integers(0, 9))
        lp = -rng.exponential(1.0, (anchors, depth, k)).cumsum(axis=2) * rng.uniform(0.05, 1.0, (anchors, depth, 1))
        if step is not None:
            lp = np.round(lp / step) * step
        lp[rng.random(lp.shape) < ruled_out] = -np.inf
        lp = -np.sort(-lp, axis=2)
        ranks = np.minimum(rng.geometric(0.55, (anchors, depth)) - 1, k - 1)
        ranks[rng.random(ranks.shape) < 0.1] = -1
        traces.append(trace(lp, ranks, f"p{number}"))
    return TraceSet.of(traces)


def slow(traces: TraceSet, strategies: Sequence[Strategy]) -> list[Outcome]:
    """Builds every tree with the heap and walks it node by node, round by round."""
    return [_slow(traces, strategy) for strategy in strategies]


def slow_round(log_probs: np.ndarray, ranks: np.ndarray, strategy: Strategy) -> tuple[int, int]:
    """Accepted tokens (before clipping) and drafted nodes of one round."""
    depth = strategy.depth or len(log_probs)
    if strategy.name == "autoregressive":
        return 0, 0
    if strategy.name == "dflash":
        accepted = 0
        while accepted < depth and ranks[accepted] == 0:
            accepted += 1
        return accepted, depth
    tree = build_tree_heap(
        torch.from_numpy(log_probs[None]),
        strategy.nodes or len(log_probs),
        strategy.width,
        strategy.depth,
        strategy.min_log_prob,
        strategy.force_spine,
    )
    parents, node_ranks = tree.parents[0].tolist(), tree.ranks[0].tolist()
    here, accepted = ROOT, 0
    while accepted < depth:
        wanted = int(ranks[accepted])
        children = [n for n, parent in enumerate(parents) if parent == here and node_ranks[n] == wanted]
        if not children:
            break
        here, accepted = children[0], accepted + 1
    return accepted, sum(parent != PADDING for parent in parents)


def _slow(traces: TraceSet, strategy: Strategy) -> Outcome:
    requests, depth = len(traces.traces), traces.depth
    numbers = {name: np.zeros(requests, dtype=np.int64) for name in ("rounds", "drafted", "accepted", "accepted_raw")}
    histogram = np.zeros((requests, depth + 1), dtype=np.int64)
    for r, each in enumerate(traces.traces):
        last = len(each.output) - 1
        at = 0
        while at < last and strategy.name != "autoregressive":
            accepted, drafted = slow_round(each.log_probs[at], each.ranks[at], strategy)
            emitted = min(accepted + 1, last - at)
            numbers["rounds"][r] += 1
            numbers["drafted"][r] += drafted
            numbers["accepted"][r] += min(accepted, emitted)
            numbers["accepted_raw"][r] += accepted
            histogram[r, accepted] += 1
            at += emitted
    return Outcome(**numbers, histogram=histogram)


def same(first: Outcome, second: Outcome) -> bool:
    names = ("rounds", "drafted", "accepted", "accepted_raw", "histogram")
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)


def agree(traces: TraceSet, strategies: Sequence[Strategy], found: Sequence[Outcome]) -> bool:
    return all(same(a, b) for a, b in zip(slow(traces, strategies), found, strict=True))


__all__ = ["agree", "random_traces", "ranks_of", "same", "slow", "slow_round", "trace"]
