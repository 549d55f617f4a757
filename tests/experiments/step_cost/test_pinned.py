"""Pinned acceptance: the real walk keeps exactly as much as asked, and steps of a batch are timed as they are."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ddbench
from ddbench.decoding import ModelPair, Strategy, load_pair
from ddbench.decoding.proposal import Proposal
from ddbench.errors import ConfigError
from ddbench.tree import build_tree, walk
from experiments.step_cost.pinned import STAGES, pin, prefill_ms, timed_steps

ASSETS = Path(ddbench.__file__).parent / "assets"
WORDS = 40


@pytest.fixture(scope="module")
def tiny() -> ModelPair:
    torch.set_num_threads(1)
    return load_pair(ASSETS / "target", ASSETS / "dflash")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 6), st.integers(0, 8), st.integers(0, 10**6))
def test_the_walk_keeps_what_is_pinned(rows: int, nodes: int, depth: int, accepted: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.rand(rows, depth, 8, generator=generator).mul(-4).sort(dim=-1, descending=True)[0]
    ids = torch.stack([torch.randperm(WORDS, generator=generator)[:8] for _ in range(rows * depth)])
    tree = build_tree(log_probs, nodes)
    tokens = tree.token_ids(ids.view(rows, depth, 8))
    proposal = Proposal.of_tree(tokens, tree.parents, tree.depths, depth)
    chosen = pin(proposal, accepted)
    found = walk(proposal.parents, proposal.tokens, chosen, depth)
    deepest = proposal.depths.amax(dim=1)
    assert found.accepted.tolist() == deepest.clamp(max=accepted).tolist()
    for row in range(rows):
        assert int(found.bonus[row]) not in proposal.tokens[row].tolist()


def clock() -> float:
    """A clock that goes on by one at each look."""
    return float(next(TICKS))


TICKS = itertools.count()


@pytest.mark.parametrize("strategy", [Strategy("dflash", depth=5), Strategy("ddtree", nodes=12)])
def test_rounds_of_a_batch(tiny: ModelPair, strategy: Strategy) -> None:
    """The chain of five keeps two a round, so that a round in the middle begins with three tokens more each time."""
    prompts = [list(range(10, 30)), list(range(40, 60))]
    timed = timed_steps(tiny, strategy, prompts, 4, 2)
    assert timed.stages is not None
    assert set(timed.stages) == set(STAGES)
    assert timed.accepted <= 2
    if strategy.name == "dflash":
        assert timed.accepted == 2
        assert timed.context == 20 + 3 * (2 + 1.5)  # two rounds to settle, then four
    parts = sum(timed.stages.values())
    assert 0.5 * timed.ms < parts < 1.5 * timed.ms


def test_steps_without_a_drafter_and_prefills(tiny: ModelPair) -> None:
    timed = timed_steps(tiny, Strategy("autoregressive"), [[5, 6, 7]], 3, 2, clock)
    assert timed.stages is None
    assert timed.context == 3 + 2 + 1  # a token a step
    assert timed.accepted == 0
    assert timed.ms == 2000.0  # the loop looks at the clock once within a step
    assert prefill_ms(tiny, Strategy("ddtree", nodes=1), list(range(20)), clock) > 0


def test_pinning_is_no_part_of_a_round(tiny: ModelPair) -> None:
    """On a clock that counts looks: a round has its own looks, and the two around pinning are taken off again."""
    timed = timed_steps(tiny, Strategy("dflash", depth=3), [[5, 6, 7]], 3, 1, clock)
    assert timed.stages is not None
    assert sum(timed.stages.values()) < timed.ms


def test_a_context_too_long_is_refused(tiny: ModelPair) -> None:
    with pytest.raises(ConfigError, match="a request within the context"):
        timed_steps(tiny, Strategy("dflash", depth=3), [[1] * 2040], 10, 2)
