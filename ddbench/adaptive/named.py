"""Policies by the names that configurations and arms use, and the candidates that they have unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from ddbench.adaptive.caddtree import CaDDTree
from ddbench.adaptive.cost_optimal import CostOptimal
from ddbench.adaptive.policy import Candidates, Policy
from ddbench.errors import ConfigError

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (CostOptimal(), CostOptimal(calibrated=False), CaDDTree())
}


def policy_of(name: str) -> Policy:
    """Raises ConfigError for a name that is no policy's."""
    if name not in POLICIES:
        raise ConfigError("policy", name, f"one of {', '.join(POLICIES)}")
    return POLICIES[name]


def usual_candidates(nodes: int, depth: int) -> Candidates:
    """Budgets 1, 2, 3, 4, 6, 8, 12, 16, 24, ... up to ``nodes``, itself included; chains of 3, 7, 15, ... up to
    ``depth``, itself included; and autoregressive decoding."""
    trees = {nodes, *(each for each in _halves(nodes) if each <= nodes)}
    chains = {depth, *(2**power - 1 for power in range(2, depth.bit_length() + 1) if 2**power - 1 <= depth)}
    return Candidates(tuple(sorted(trees)), tuple(sorted(chains)))


def _halves(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, ...: powers of two and those between."""
    power = 1
    while power <= most:
        yield power
        yield power + power // 2
        power *= 2
