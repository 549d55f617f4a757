"""Stop tokens and length limits inside an accepted path: the text ends where it must, and both counts are kept."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from ddbench.decoding import ModelPair, Round, Strategy, decode


def test_every_length_limit(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    """All limits from 1 on: each cuts the same text, wherever the accepted paths end."""
    base = toys.requests(8, 24)
    full = [each.output_token_ids for each in decode(pair, Strategy("autoregressive"), base, 8)]
    requests = [
        replace(request, prompt_id=f"{request.prompt_id}-{limit}", max_new_tokens=limit)
        for request in base[:3]
        for limit in range(1, 25)
    ]
    out = decode(pair, strategy, requests, 8)
    for index, generation in enumerate(out):
        assert generation.output_token_ids == full[index // 24][: index % 24 + 1]
        assert generation.finish_reason == "length"
    assert any(cut(each) for generation in out for each in generation.rounds)


def test_stop_tokens(pair: ModelPair, toys: SimpleNamespace, strategy: Strategy) -> None:
    """Every token that occurs in a text is tried as the stop token of that prompt."""
    base = toys.requests(8, 24)
    full = [each.output_token_ids for each in decode(pair, Strategy("autoregressive"), base, 8)]
    requests, expected = [], []
    for request, text in zip(base, full, strict=True):
        for token in sorted(set(text)):
            requests.append(replace(request, stop_ids=frozenset({token, 1000})))
            expected.append(text[: text.index(token) + 1])
    out = decode(pair, strategy, requests, 8)
    assert [each.output_token_ids for each in out] == expected
    assert all(each.finish_reason == "stop" for each in out)
    own = replace(requests[0], stop_ids=frozenset({expected[0][-1]}))
    assert out[0].output_token_ids == toys.reference(pair.target, own)
    assert any(cut(each) for generation in out for each in generation.rounds)


def test_stop_at_the_last_allowed_token_is_a_stop(pair: ModelPair, toys: SimpleNamespace) -> None:
    request = toys.requests(3, 6)[2]
    text = toys.reference(pair.target, request)
    first_seen = text.index(text[-1])
    limited = replace(request, max_new_tokens=first_seen + 1, stop_ids=frozenset({text[-1]}))
    for name in ("autoregressive", "dflash", "ddtree"):
        assert decode(pair, Strategy(name), [limited], 1)[0].finish_reason == "stop"


def cut(each: Round) -> bool:
    """Did the round verify more than the text could take?"""
    return each.emitted < each.accepted_raw + 1
