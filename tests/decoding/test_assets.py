"""The shipped models: every strategy emits exactly the target's greedy tokens for every shipped prompt."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import ddbench
from ddbench.decoding import ModelPair, Request, Sampling, Strategy, decode, load_pair

ASSETS = Path(ddbench.__file__).parent / "assets"
NEW_TOKENS = 24
STRATEGIES = {
    "autoregressive": Strategy("autoregressive"),
    "dflash": Strategy("dflash"),
    "eagle-chain": Strategy("eagle", width=1, depth=5),
    "eagle-tree": Strategy("eagle", width=4, depth=5, nodes=16),
    "ddtree": Strategy("ddtree", nodes=16),
}


@pytest.fixture(scope="module")
def shipped() -> ModelPair:
    return load_pair(ASSETS / "target", ASSETS / "dflash", ASSETS / "eagle3")


@pytest.fixture(scope="module")
def requests(shipped: ModelPair) -> list[Request]:
    records = [json.loads(line) for line in (ASSETS / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    stop = shipped.target.generation_config.eos_token_id
    stop_ids = frozenset([stop] if isinstance(stop, int) else stop or ())
    return [
        Request(each["id"], tuple(shipped.tokenizer(each["turns"][0])["input_ids"]), NEW_TOKENS, Sampling(), stop_ids)
        for each in records
    ]


@pytest.fixture(scope="module")
def expected(shipped: ModelPair, requests: list[Request], toys: SimpleNamespace) -> list[tuple[int, ...]]:
    """The model's own ``generate``, prompt by prompt."""
    return [toys.reference(shipped.target, request) for request in requests]


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_lossless_for_every_shipped_prompt(
    shipped: ModelPair, requests: list[Request], expected: list[tuple[int, ...]], name: str, batch_size: int
) -> None:
    assert len({len(request.token_ids) for request in requests}) > 8, "prompts of mixed length"
    out = decode(shipped, STRATEGIES[name], requests, batch_size)
    wrong = [
        request.prompt_id
        for request, each, own in zip(requests, out, expected, strict=True)
        if each.output_token_ids != own
    ]
    assert wrong == []
    if name != "autoregressive":
        rounds = [one for each in out for one in each.rounds]
        assert sum(one.accepted for one in rounds) > len(rounds) / 2
