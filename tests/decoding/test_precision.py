"""bfloat16 runs on a CPU; on a GPU both precisions do. Exactness is claimed in float32 only."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ddbench.decoding import Sampling, Strategy, decode

gpu = pytest.mark.gpu


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_bfloat16(toys: SimpleNamespace, strategy: Strategy, device: str) -> None:
    """Rounding may change tokens, not the bookkeeping; most of the text is the autoregressive arm's all the same."""
    pair = toys.pair(dtype=torch.bfloat16, device=device)
    requests = toys.requests(6, 16)
    plain = decode(pair, Strategy("autoregressive"), requests, 3)
    out = decode(pair, strategy, requests, 3)
    assert all(len(each.output_token_ids) == 16 for each in out)
    assert all(1 + sum(one.emitted for one in each.rounds) == 16 for each in out)
    assert any(one.accepted for each in out for one in each.rounds)
    same = [a.output_token_ids[:4] == b.output_token_ids[:4] for a, b in zip(plain, out, strict=True)]
    assert sum(same) >= 4


@gpu
@pytest.mark.parametrize("batch_size", [1, 8])
def test_lossless_on_cuda(toys: SimpleNamespace, strategy: Strategy, batch_size: int) -> None:
    pair = toys.pair(device="cuda")
    requests = toys.requests(8, 32)
    expected = [toys.reference(pair.target, request) for request in requests]
    assert [
        each.output_token_ids for each in decode(pair, Strategy("autoregressive"), requests, batch_size)
    ] == expected
    out = decode(pair, strategy, requests, batch_size)
    assert [each.output_token_ids for each in out] == expected
    rounds = [each for generation in out for each in generation.rounds]
    assert any(each.accepted for each in rounds)
    assert all(each.draft_s > 0 and each.verify_s > 0 and each.commit_s > 0 for each in rounds)


@gpu
def test_sampled_on_cuda(toys: SimpleNamespace, strategy: Strategy) -> None:
    pair = toys.pair(device="cuda")
    requests = toys.requests(8, 24, Sampling(1.0, top_p=0.95, seed=2))
    expected = [each.output_token_ids for each in decode(pair, Strategy("autoregressive"), requests, 8)]
    assert [each.output_token_ids for each in decode(pair, strategy, requests, 8)] == expected
