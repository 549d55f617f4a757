"""At every anchor a tree with a forced spine accepts at least what the drafter's own chain accepts there."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from ddbench.decoding import ModelPair, Request, Sampling, Strategy, decode


def first_accepts(pair: ModelPair, strategy: Strategy, anchors: list[Request]) -> list[int]:
    """What the first round after each prompt accepts; the bonus token is the greedy one under every strategy."""
    return [each.rounds[0].accepted_raw for each in decode(pair, strategy, anchors, 16)]


@pytest.fixture(scope="module")
def anchors(pair: ModelPair, toys: SimpleNamespace) -> list[Request]:
    """Prompts that end at every position of several continuations, greedy and sampled."""
    requests = toys.requests(5, 20) + toys.requests(5, 20, Sampling(1.0, seed=9))
    return [
        Request(f"{index}-{end}", (*request.token_ids, *text.output_token_ids[:end]), 10, Sampling(), frozenset())
        for index, (request, text) in enumerate(
            zip(requests, decode(pair, Strategy("autoregressive"), requests, 10), strict=True)
        )
        for end in range(20)
    ]


@pytest.mark.parametrize("nodes", [7, 8, 16, 40])
@pytest.mark.parametrize("width", [None, 2])
def test_tree_with_spine_accepts_no_less(
    pair: ModelPair, toys: SimpleNamespace, anchors: list[Request], nodes: int, width: int | None
) -> None:
    chain = first_accepts(pair, Strategy("dflash"), anchors)
    tree = first_accepts(pair, Strategy("ddtree", nodes=nodes, width=width, force_spine=True), anchors)
    assert all(more >= less for more, less in zip(tree, chain, strict=True))
    assert sum(chain) > 0
    if nodes == 7:
        assert tree == chain  # the spine fills the budget
    else:
        assert sum(tree) > sum(chain)


def test_width_one_is_the_chain(pair: ModelPair, anchors: list[Request]) -> None:
    chain = first_accepts(pair, Strategy("dflash", depth=5), anchors)
    assert first_accepts(pair, Strategy("ddtree", nodes=5, width=1, depth=5), anchors) == chain


def test_larger_budgets_accept_no_less(pair: ModelPair, anchors: list[Request]) -> None:
    """Budgets are nested, so acceptance at an anchor never falls as the budget grows."""
    rows = [first_accepts(pair, Strategy("ddtree", nodes=nodes), anchors) for nodes in (2, 8, 24)]
    for small, large in pairwise(rows):
        assert all(more >= less for more, less in zip(large, small, strict=True))
