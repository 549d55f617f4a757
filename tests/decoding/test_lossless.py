"""Greedy decoding: every strategy emits Hugging Face's own greedy tokens, alone and in a batch of mixed lengths."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddbench.decoding import ModelPair, Strategy, decode


@pytest.fixture(scope="module")
def expected(pair: ModelPair, toys: SimpleNamespace) -> list[tuple[int, ...]]:
    return [toys.reference(pair.target, request) for request in toys.requests()]


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_autoregressive_is_the_models_own(
    pair: ModelPair, toys: SimpleNamespace, expected: list[tuple[int, ...]], batch_size: int
) -> None:
    out = decode(pair, Strategy("autoregressive"), toys.requests(), batch_size)
    assert [each.output_token_ids for each in out] == expected


@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_lossless(
    pair: ModelPair, toys: SimpleNamespace, expected: list[tuple[int, ...]], strategy: Strategy, batch_size: int
) -> None:
    out = decode(pair, strategy, toys.requests(), batch_size)
    assert [each.output_token_ids for each in out] == expected
    rounds = [each for generation in out for each in generation.rounds]
    assert any(each.accepted > 0 for each in rounds), "nothing was accepted: the test would prove nothing"


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_other_architectures(toys: SimpleNamespace, kind: str, strategy: Strategy) -> None:
    pair, requests = toys.pair(kind), toys.requests(5)
    expected = [toys.reference(pair.target, request) for request in requests]
    assert [each.output_token_ids for each in decode(pair, strategy, requests, 4)] == expected


def test_mixed_budgets_and_refill(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    """Requests of many lengths end at different times; rows are refilled and moved, order and text stay."""
    requests = toys.requests(10, [1, 40, 3, 17, 2, 29, 1, 8, 33, 12])
    expected = [toys.reference(pair.target, request) for request in requests]
    assert [each.output_token_ids for each in decode(pair, strategy, requests, 3)] == expected
