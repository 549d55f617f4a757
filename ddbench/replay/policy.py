"""Policies that choose anew each round among a few ways of drafting, and their replay.

An adaptive node budget is one: its arms are budgets of one nested build, the chain, and autoregressive decoding. What a
policy may know is what the engine knows when a round begins: the drafter's distributions and the length of the context,
never what the target will say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ddbench.decoding import Strategy
from ddbench.errors import ConfigError
from ddbench.replay.outcome import Outcome, walk
from ddbench.replay.shapes import refuse, tables
from ddbench.replay.trace import TraceSet
from ddbench.tree import build_tree

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]

_CHUNK = 256  # anchors whose trees are built at once


@dataclass(frozen=True)
class Rounds:
    """Rounds that begin together, one of each request that goes on: n of them.

    Attributes:
        request: ``[n]``, places in the trace set; a policy with a memory keeps it by request.
        number: rounds that these requests have had.
        context: ``[n]`` committed tokens.
        expected: ``[arms, n]`` tokens that the drafter itself expects to be accepted: the sum of its probabilities over
            the nodes of the arm's tree (DDTree paper, proposition 1); 0 for autoregressive decoding.
        drafted: ``[arms, n]`` nodes that the arm would draft.
    """

    request: Ints
    number: int
    context: Ints
    expected: Floats
    drafted: Ints


class Policy(Protocol):
    """Chooses one of its ``arms`` for every round."""

    arms: tuple[Strategy, ...]

    def choose(self, rounds: Rounds) -> Ints:
        """Places in ``arms``, ``[n]``. Called once a round, in order, with all requests that go on."""


@dataclass(frozen=True)
class Fixed:
    """The policy that always drafts the same."""

    strategy: Strategy

    @property
    def arms(self) -> tuple[Strategy, ...]:
        return (self.strategy,)

    def choose(self, rounds: Rounds) -> Ints:
        return np.zeros(len(rounds.request), dtype=np.int64)


def replay_policy(traces: TraceSet, policy: Policy) -> tuple[Outcome, Ints]:
    """What a policy would have done, and how often each request took each arm: ``[requests, arms]``.

    All requests step together, as in a batch as large as the set. A step of an autoregressive arm is a round that
    drafts and accepts nothing.

    Raises:
        ConfigError: an arm that cannot be replayed, or a choice that is no arm.
    """
    arms = policy.arms
    for strategy in arms:
        reason = refuse(strategy, traces.depth, traces.k)
        if reason is not None:
            raise ConfigError("policy", strategy.name, f"arms that can be replayed ({reason})")
    accepted = np.zeros((len(arms), traces.anchors), dtype=np.int64)
    drafted = np.zeros_like(accepted)
    for places, kept, made in tables(traces, arms):
        accepted[places], drafted[places] = kept, made
    expected = expectations(traces, arms)
    taken = np.zeros((len(traces.starts), len(arms)), dtype=np.int64)
    number = 0

    def offer(_: Ints, request: Ints, anchor: Ints) -> tuple[Ints, Ints]:
        nonlocal number
        arm = policy.choose(Rounds(request, number, traces.context[anchor], expected[:, anchor], drafted[:, anchor]))
        if arm.shape != request.shape or not ((arm >= 0) & (arm < len(arms))).all():
            raise ConfigError("policy", arm.tolist(), f"one of {len(arms)} arms for each of {len(request)} rounds")
        number += 1
        taken[request, arm] += 1
        return accepted[arm, anchor], drafted[arm, anchor]

    return walk(traces, 1, offer)[0], taken


def expectations(traces: TraceSet, arms: Sequence[Strategy]) -> Floats:
    """What the drafter expects each arm to have accepted at every anchor: ``[arms, anchors]``, see :class:`Rounds`."""
    found = np.zeros((len(arms), traces.anchors))
    built: dict[tuple[Any, ...], Floats] = {}
    for place, arm in enumerate(arms):
        depth = arm.depth or traces.depth
        if arm.name == "dflash":
            found[place] = np.exp(np.add.accumulate(traces.log_probs[:, :depth, 0], axis=1, dtype=np.float64)).sum(1)
        elif arm.name == "ddtree":
            shape = (arm.width, depth, arm.min_log_prob, arm.force_spine)
            if shape not in built:
                same = [each.nodes or traces.depth for each in arms if each.name == "ddtree"]
                built[shape] = _cumulative(traces, max(same), *shape)
            found[place] = built[shape][:, (arm.nodes or traces.depth) - 1]
    return found


def _cumulative(
    traces: TraceSet, nodes: int, width: int | None, depth: int, floor: float | None, spine: bool
) -> Floats:
    """Sum of the probabilities of the first b nodes, ``[anchors, nodes]``, b from 1."""
    parts = [
        build_tree(part, max(nodes, depth) if spine else nodes, width, depth, floor, spine).scores[:, :nodes]
        for part in torch.split(torch.from_numpy(traces.log_probs), _CHUNK)
    ]
    sums: Floats = torch.cat(parts).double().exp().cumsum(1).numpy()
    return sums
