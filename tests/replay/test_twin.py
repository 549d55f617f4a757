"""The fast replay against the slow one, on made-up traces with and without ties; and mistakes that this must catch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import agree, random_traces, slow, trace

import ddbench.replay.count as count
from ddbench.decoding import Strategy
from ddbench.errors import ConfigError
from ddbench.replay import Outcome, TraceSet, replay
from ddbench.replay import outcome as outcome_module
from ddbench.replay.trace import ranks_of

GRID = [
    *(
        Strategy("ddtree", width, depth, nodes, spine, floor)
        for width in (1, 2, None)
        for depth in (1, 2, 4)
        for nodes in (1, 3, 4, 6)
        for spine in (False, True)
        for floor in (None, -1.5)
        if not (spine and nodes < depth)
    ),
    *(Strategy("dflash", depth=depth) for depth in (1, 2, None)),
    Strategy("autoregressive"),
]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    step=st.sampled_from([None, 1.0, 0.5, 0.25]),
    ruled_out=st.sampled_from([0.0, 0.3]),
    chosen=st.lists(st.sampled_from(GRID), min_size=1, max_size=12),
)
def test_the_fast_replay_is_the_slow_one(
    seed: int, step: float | None, ruled_out: float, chosen: list[Strategy]
) -> None:
    traces = random_traces(seed, step=step, ruled_out=ruled_out)
    assert agree(traces, chosen, replay(traces, chosen))


@pytest.mark.parametrize("step", [None, 0.5])
def test_the_whole_grid_at_once(step: float | None) -> None:
    traces = random_traces(3, requests=4, step=step)
    assert agree(traces, GRID, replay(traces, GRID))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), step=st.sampled_from([None, 0.5]), width=st.integers(1, 6), floor=st.floats(-4, 0))
def test_nodes_of_a_family_are_counted_rightly(seed: int, step: float | None, width: int, floor: float) -> None:
    """Against the heap, which lists them: 40 is more than there are before anything that is asked."""
    import torch

    from ddbench.replay import Family
    from ddbench.tree import build_tree_heap

    traces = random_traces(seed, requests=2, depth=3, step=step)
    if traces.anchors == 0:
        return
    cap = 6
    family = Family.of(traces, width, cap)
    for depth in (1, 2, 3):
        tree = build_tree_heap(torch.from_numpy(traces.log_probs), 40, width, depth, floor)
        listed = tree.counts().numpy()
        assert (family.drafted(depth, [cap], floor, False)[0] == np.minimum(listed, cap)).all()


def test_outputs_of_one_and_two_tokens() -> None:
    none = trace(np.zeros((0, 4, 6)), np.zeros((0, 4)))
    one = trace(np.full((1, 4, 6), -1.0), np.zeros((1, 4)), "q")
    traces = TraceSet.of([none, one])
    (found,) = replay(traces, [Strategy("dflash")])
    assert found.rounds.tolist() == [0, 1]
    assert found.accepted_raw.tolist() == [0, 4]  # all four drafts were right ...
    assert found.accepted.tolist() == [0, 1]  # ... and one token was still to be emitted


def test_rounds_by_hand() -> None:
    """Best first: (0) -0.1, (0, 0) -0.3, (1) -1.0, (1, 0) -1.2, ...; the true paths at the four anchors differ."""
    log_probs = np.array([[[-0.1, -1.0, -9.0, -9.0], [-0.2, -3.0, -9.0, -9.0]]] * 4)
    ranks = np.array([[1, 0], [0, 1], [0, 0], [-1, -1]])
    traces = TraceSet.of([trace(log_probs, ranks)])
    chain, *trees = replay(traces, [Strategy("dflash"), *(Strategy("ddtree", nodes=nodes) for nodes in (2, 3, 4))])
    for found, rounds, drafted, kept, raw, bars in (
        (chain, 3, 6, 1, 1, [2, 1, 0]),  # anchors 0, 1, 3
        (trees[0], 3, 6, 1, 1, [2, 1, 0]),  # the same: its two nodes are the chain
        (trees[1], 2, 6, 3, 3, [0, 1, 1]),  # anchors 0 and 2; the last round ends the text with a drafted token
        (trees[2], 2, 8, 2, 2, [1, 0, 1]),  # anchors 0 and 3
    ):
        numbers = found.rounds[0], found.drafted[0], found.accepted[0], found.accepted_raw[0]
        assert (*map(int, numbers), found.histogram[0].tolist()) == (rounds, drafted, kept, raw, bars)


def test_what_cannot_be_replayed_says_why() -> None:
    traces = random_traces(0)
    for strategy, word in (
        (Strategy("eagle", depth=2), "EAGLE"),
        (Strategy("ddtree", nodes=7), "record.nodes"),
        (Strategy("dflash", depth=5), "depth 5"),
        (Strategy("ddtree", nodes=3, force_spine=True), "forced spine"),
    ):
        with pytest.raises(ConfigError, match=word) as caught:
            replay(traces, [strategy])
        assert "\n" not in str(caught.value)


def test_places_of_tokens_among_candidates() -> None:
    """Anchor i at depth d is asked for token i + d; past the known tokens nothing matches."""
    candidates = np.array([[[7, 8], [9, 8]], [[9, 7], [5, 4]]])
    assert ranks_of(candidates, [1, 8, 9]).tolist() == [[1, 0], [0, -1]]
    assert ranks_of(candidates, [1, 8, 9, 4]).tolist() == [[1, 0], [0, 1]]


# Mistakes that the comparison must notice ----------------------------------------------------------------------------


def _shifted(traces: TraceSet, strategies: list[Strategy]) -> list[Outcome]:
    """Off by one: each anchor is held against the tokens of the next."""
    moved = np.roll(traces.ranks, -1, axis=0)
    return replay(TraceSet(**{**vars(traces), "ranks": moved}), strategies)


def _bonus(traces: TraceSet, strategies: list[Strategy]) -> list[Outcome]:
    """The bonus token counted as accepted."""
    return [
        Outcome(each.rounds, each.drafted, each.accepted + each.rounds, each.accepted_raw + each.rounds, each.histogram)
        for each in replay(traces, strategies)
    ]


@pytest.mark.parametrize("mistake", [_shifted, _bonus])
def test_planted_mistakes_are_caught(mistake: Callable[[TraceSet, list[Strategy]], list[Outcome]]) -> None:
    traces = random_traces(1, requests=6)
    assert agree(traces, GRID, replay(traces, GRID))
    assert not agree(traces, GRID, mistake(traces, GRID))


def test_a_wrong_order_of_ties_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal scores taken as coming after, whatever their ranks: right without ties, wrong with them."""

    def strictly(flat: np.ndarray, base: np.ndarray, sums: np.ndarray, bound: np.ndarray, width: int) -> np.ndarray:
        return (sums[:, None] + flat[base[:, None] + np.arange(width)] > bound[:, None]).sum(1)

    untied, tied = random_traces(2, requests=6), random_traces(2, requests=6, step=0.5)
    monkeypatch.setattr(count, "_qualifying", strictly)
    trees = [each for each in GRID if each.min_log_prob is None]
    assert agree(untied, trees, replay(untied, trees))
    assert not agree(tied, trees, replay(tied, trees))


def test_a_last_round_that_is_not_cut_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = random_traces(4, requests=6)
    cut = slow(traces, GRID)
    monkeypatch.setattr(outcome_module.np, "minimum", lambda first, second: np.asarray(first))
    (found,) = outcome_module.walk(traces, 1, lambda s, r, a: (np.full(len(a), 3), np.full(len(a), 4)))
    assert (found.accepted == found.accepted_raw).all()
    assert any((each.accepted != each.accepted_raw).any() for each in cut)
