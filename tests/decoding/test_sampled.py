"""Temperature above 0: draws are keyed by prompt and position, so all strategies emit the autoregressive arm's text."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ddbench.decoding import ModelPair, Request, Sampling, Strategy, decode

SAMPLINGS = [Sampling(1.0, seed=3), Sampling(0.7, top_p=0.9, seed=4), Sampling(1.3, top_k=5, seed=5)]


def test_same_text_as_autoregressive(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    """Every sampling, and greedy rows, mixed in one batch."""
    requests = [
        replace(request, sampling=(*SAMPLINGS, Sampling())[index % 4]) for index, request in enumerate(toys.requests())
    ]
    expected = [each.output_token_ids for each in decode(pair, Strategy("autoregressive"), requests, 1)]
    assert expected[3] == toys.reference(pair.target, requests[3])
    for batch_size in (1, 5):
        out = decode(pair, strategy, requests, batch_size)
        assert [each.output_token_ids for each in out] == expected
        assert any(each.accepted for generation in out for each in generation.rounds)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["plain", "top-p", "top-k"])
def test_one_sampling_for_all(pair: ModelPair, toys: SimpleNamespace, sampling: Sampling) -> None:
    requests = toys.requests(sampling=sampling)
    expected = [each.output_token_ids for each in decode(pair, Strategy("autoregressive"), requests, 8)]
    out = decode(pair, Strategy("ddtree", nodes=16), requests, 8)
    assert [each.output_token_ids for each in out] == expected


def test_draws_depend_on_seed_prompt_and_turn(pair: ModelPair, toys: SimpleNamespace) -> None:
    base = toys.requests(4, sampling=Sampling(1.0, seed=1))[3]
    variants = [
        base,
        replace(base, sampling=Sampling(1.0, seed=2)),
        replace(base, prompt_id="other"),
        replace(base, turn=1),
    ]
    texts = [each.output_token_ids for each in decode(pair, Strategy("autoregressive"), variants, 4)]
    assert len(set(texts)) == 4
    again = decode(pair, Strategy("autoregressive"), variants[:1], 1)[0].output_token_ids
    assert again == texts[0]


@pytest.mark.parametrize("name", ["autoregressive", "ddtree"])
def test_emitted_tokens_have_the_targets_law(pair: ModelPair, toys: SimpleNamespace, name: str) -> None:
    """The second token, given the first, over many seeds: total variation to the target's own distribution is small.

    1500 seeds fixed beforehand. For 24 tokens the expected distance of a right sampler is below
    sum(sqrt(p / (2 pi n))) <= sqrt(24 / (2 pi 1500)) = 0.051; the bound is twice that.
    """
    prompt = toys.requests(4)[3].token_ids
    requests = [Request("law", prompt, 3, Sampling(1.0, seed=seed), frozenset()) for seed in range(1500)]
    strategy = Strategy("ddtree", nodes=16) if name == "ddtree" else Strategy(name)
    out = decode(pair, strategy, requests, 64)
    with torch.inference_mode():
        first = pair.target(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        context = [[*prompt, token] for token in range(toys.vocab)]
        after = pair.target(torch.tensor(context)).logits[:, -1].softmax(-1)
    law = (first[:, None] * after).sum(0)
    counts = Counter(each.output_token_ids[1] for each in out)
    observed = torch.tensor([counts[token] / len(out) for token in range(toys.vocab)])
    assert 0.5 * (observed - law).abs().sum() < 0.1
    greedy_only = torch.zeros(toys.vocab).index_fill(0, law.argmax(), 1.0)
    assert 0.5 * (greedy_only - law).abs().sum() > 0.3, "a law so peaked that the test could not fail"
