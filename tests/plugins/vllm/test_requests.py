"""Requests that a tree cannot serve are refused with the reason, and only by an engine that was asked for trees."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_cases import BASELINE, MIXED, MIXED_4, NEW
from vllm_jobs import Case, EngineHost, Job, greedy

pytestmark = pytest.mark.vllm

UNSERVED: dict[str, Any] = {
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.2,
    "min_p": 0.1,
    "min_tokens": 3,
    "logprobs": 2,
    "prompt_logprobs": 1,
    "logit_bias": {"40": 2.0},
    "allowed_token_ids": [40, 41],
    "bad_words": ["the"],
    "structured_outputs": {"choice": ["yes", "no"]},
}
PARAMS = tuple({"temperature": 0.7, "max_tokens": 6, name: value} for name, value in UNSERVED.items())
ASKED = Case("asked", (MIXED[0],) * (len(PARAMS) + 1), (*PARAMS, greedy(NEW)))


def test_refused_by_name_and_others_are_served(engines: EngineHost) -> None:
    found = engines.run(Job("tree", (ASKED,), nodes=16))["asked"]
    assert set(found.refused) == {str(index) for index in range(len(PARAMS))}
    for index, name in enumerate(UNSERVED):
        reason = found.refused[str(index)]
        assert name in reason
        stock = "not yet supported with speculative decoding" in reason  # vLLM refuses two by itself
        assert stock or reason.startswith(f"DDTree does not serve requests with {name}")
    assert found.outputs[-1] == engines.run(BASELINE)[MIXED_4.name].outputs[0]


def test_a_stock_engine_with_the_plug_in_installed_serves_them(engines: EngineHost) -> None:
    found = engines.run(Job("autoregressive", (ASKED,)))["asked"]
    assert found.refused == {}
    assert all(sequences is not None for sequences in found.outputs)
