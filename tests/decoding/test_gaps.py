"""Gaps between the target's two best tokens: one pass over prompt and output against a pass of each prefix."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ddbench.decoding import ModelPair, Strategy, decode
from ddbench.decoding.gaps import top_two_gaps


@torch.inference_mode()
def one_by_one(pair: ModelPair, prompt: tuple[int, ...], output: tuple[int, ...], stride: int) -> list[float]:
    """Log-probability of the best less that of the second best after every ``stride``-th prefix."""
    gaps = []
    for length in range(0, len(output), stride):
        logits = pair.target(torch.tensor([[*prompt, *output[:length]]])).logits[0, -1].float()
        best, second = torch.log_softmax(logits, dim=-1).sort(descending=True).values[:2].tolist()
        gaps.append(best - second)
    return gaps


@pytest.fixture(scope="module")
def pair(toys: SimpleNamespace) -> ModelPair:
    return ModelPair(toys.target(), None, None, None, torch.device("cpu"), torch.float32)


def test_gaps_are_those_of_every_step(pair: ModelPair, toys: SimpleNamespace) -> None:
    for made in decode(pair, Strategy("autoregressive"), toys.requests(3), 3):
        gaps = top_two_gaps(pair, made.request.token_ids, made.output_token_ids)
        slow = one_by_one(pair, made.request.token_ids, made.output_token_ids, 5)
        assert len(gaps) == len(made.output_token_ids)
        assert gaps[::5] == pytest.approx(slow, abs=1e-4)
        assert max(slow) > 0.1, "all ties: the test would prove nothing"


def test_a_token_that_is_neither_of_the_two_best_has_no_gap(pair: ModelPair, toys: SimpleNamespace) -> None:
    request = toys.requests(1)[0]
    ids = torch.tensor([request.token_ids])
    ranked = pair.target(ids).logits[0, -1].argsort(descending=True).tolist()
    best, second, third = (top_two_gaps(pair, request.token_ids, (token,))[0] for token in ranked[:3])
    assert best == second
    assert best is not None
    assert third is None
    assert top_two_gaps(pair, request.token_ids, ()) == []
