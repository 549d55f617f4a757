"""Any list of shapes replayed at once, and what cannot be replayed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddbench.decoding import Strategy
from ddbench.errors import ConfigError
from ddbench.replay.family import Family
from ddbench.replay.outcome import Outcome, walk
from ddbench.replay.trace import TraceSet

Ints = NDArray[np.integer[Any]]

_AT_ONCE = 2**25  # entries of the tables that are held at a time


def refuse(strategy: Strategy, depth: int, k: int) -> str | None:
    """Why a strategy cannot be replayed from traces of this depth and k, in one line; None if it can."""
    if strategy.name == "eagle":
        return "an EAGLE drafter goes on from its own tokens: its tree at an anchor depends on the shape asked for"
    if strategy.name == "autoregressive":
        return None
    if strategy.depth is not None and strategy.depth > depth:
        return f"depth {strategy.depth} > {depth}, the tokens that the drafter proposes"
    if strategy.name == "dflash":
        return None
    nodes = strategy.nodes or depth
    if nodes > k:
        return f"nodes {nodes} > {k}, the candidates recorded a depth (record.nodes)"
    if strategy.force_spine and nodes < (strategy.depth or depth):
        return f"nodes {nodes} < depth {strategy.depth or depth}: the forced spine alone takes as many"
    return None


def replay(traces: TraceSet, strategies: Sequence[Strategy]) -> list[Outcome]:
    """What each strategy would have done, request by request, in the order given.

    Raises:
        ConfigError: a strategy that cannot be replayed.
    """
    for strategy in strategies:
        reason = refuse(strategy, traces.depth, traces.k)
        if reason is not None:
            raise ConfigError("strategy", strategy.name, f"one that can be replayed ({reason})")
    found: dict[int, Outcome] = {}
    for places, accepted, drafted in tables(traces, strategies):
        outcomes = walk(traces, len(places), _lookup(accepted, drafted))
        found.update(zip(places, outcomes, strict=True))
    for place, strategy in enumerate(strategies):
        if strategy.name == "autoregressive":
            found[place] = _autoregressive(traces)
    return [found[place] for place in range(len(strategies))]


def tables(traces: TraceSet, strategies: Sequence[Strategy]) -> Iterator[tuple[list[int], Ints, Ints]]:
    """Accepted tokens (raw) and drafted nodes at every anchor, for some strategies after others.

    Yields:
        Places in ``strategies``, and two tables ``[places, anchors]``. Autoregressive decoding has none.
    """
    chains = [place for place, each in enumerate(strategies) if each.name == "dflash"]
    most = max(1, _AT_ONCE // max(1, traces.anchors))
    for part in _parts(chains, most):
        depths = [strategies[place].depth or traces.depth for place in part]
        right = np.logical_and.accumulate(traces.ranks == 0, axis=1).sum(1)
        lengths = np.asarray(depths)[:, None]
        yield part, np.minimum(right, lengths), np.broadcast_to(lengths, (len(part), traces.anchors))
    trees = [place for place, each in enumerate(strategies) if each.name == "ddtree"]
    for width, places in _grouped(trees, lambda place: _width(strategies[place], traces)).items():
        family = Family.of(traces, width, max(_nodes(strategies[place], traces) for place in places))
        for rest, same in _grouped(places, lambda place: _rest(strategies[place], traces)).items():
            for part in _parts(same, most):
                budgets = [_nodes(strategies[place], traces) for place in part]
                yield part, family.accepted(rest[0], budgets, *rest[1:]), family.drafted(rest[0], budgets, *rest[1:])


def _lookup(accepted: Ints, drafted: Ints) -> Any:
    def offer(strategy: Ints, request: Ints, anchor: Ints) -> tuple[Ints, Ints]:
        return accepted[strategy, anchor].astype(np.int64), drafted[strategy, anchor]

    return offer


def _autoregressive(traces: TraceSet) -> Outcome:
    """No rounds, as the reference engine counts them."""
    none = np.zeros(len(traces.starts), dtype=np.int64)
    return Outcome(none, none, none, none, np.zeros((len(none), traces.depth + 1), dtype=np.int32))


def _width(strategy: Strategy, traces: TraceSet) -> int:
    return min(traces.k, strategy.width or traces.k)


def _nodes(strategy: Strategy, traces: TraceSet) -> int:
    return strategy.nodes or traces.depth


def _rest(strategy: Strategy, traces: TraceSet) -> tuple[int, float | None, bool]:
    return strategy.depth or traces.depth, strategy.min_log_prob, strategy.force_spine


def _grouped(places: Sequence[int], key: Any) -> dict[Any, list[int]]:
    groups: dict[Any, list[int]] = {}
    for place in places:
        groups.setdefault(key(place), []).append(place)
    return groups


def _parts(places: Sequence[int], most: int) -> Iterator[list[int]]:
    yield from (list(places[start : start + most]) for start in range(0, len(places), most))
