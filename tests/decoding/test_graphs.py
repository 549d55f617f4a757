"""Replayed passes: the same text and rounds. A CPU runs the shapes of the graphs, without the graphs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ddbench.decoding import Generation, ModelPair, Strategy, decode, graphs
from ddbench.decoding.graphs import WARM, Graphs, stepped


def told(generations: list[Generation]) -> list[tuple[tuple[int, ...], list[tuple[int, int]]]]:
    return [(each.output_token_ids, [(one.accepted_raw, one.drafted) for one in each.rounds]) for each in generations]


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small steps, so that short texts need several lengths of view."""
    monkeypatch.setattr(graphs, "STEP", 32)


def test_lengths_step_up_to_the_cache() -> None:
    assert [stepped(length, 80) for length in (1, 32, 33, 65, 80)] == [32, 32, 64, 80, 80]


def test_a_shape_is_captured_once_it_has_come_often_enough() -> None:
    kept, seen = Graphs(torch.device("cpu")), []

    def double(values: torch.Tensor) -> torch.Tensor:
        seen.append(values)
        return values * 2

    for call in range(WARM + 2):
        given = torch.full((2,), float(call))
        assert kept.run("double", double, given).tolist() == [2.0 * call] * 2
        assert (seen[-1] is given) == (call < WARM)
        assert len(kept) == (call >= WARM)
    assert (kept.replayed, kept.direct) == (2, WARM)
    assert seen[-1] is seen[-2], "the inputs of a graph stay where they are"


def test_lossless_with_the_same_rounds(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    requests = toys.requests(3, [14, 24, 40])
    plain = decode(pair, strategy, requests, 2)
    assert told(decode(pair, strategy, requests, 2, graphs=True)) == told(plain)
    assert any(one.accepted for each in plain for one in each.rounds)


def test_autoregressive(pair: ModelPair, toys: SimpleNamespace) -> None:
    requests, plain = toys.requests(3, [14, 24, 40]), Strategy("autoregressive")
    assert told(decode(pair, plain, requests, 2, graphs=True)) == told(decode(pair, plain, requests, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("batch_size", [1, 3])
def test_on_cuda(toys: SimpleNamespace, strategy: Strategy, batch_size: int) -> None:
    pair, requests = toys.pair(device="cuda"), toys.requests(8, 40)
    expected = [toys.reference(pair.target, request) for request in requests]
    for chosen in (Strategy("autoregressive"), strategy):
        out = decode(pair, chosen, requests, batch_size, graphs=True)
        assert [each.output_token_ids for each in out] == expected
