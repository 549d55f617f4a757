"""The tiny pair, a few of its prompts, and a recording of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path

import pytest
import torch

import ddbench
from ddbench.decoding import ModelPair, Request, Sampling, load_pair
from ddbench.replay import TraceSet
from ddbench.replay.record import record
from ddbench.replay.trace import Key

sys.path.insert(0, str(Path(__file__).resolve().parent))

ASSETS = Path(ddbench.__file__).parent / "assets"

MakeRequests = Callable[..., list[Request]]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny() -> ModelPair:
    return load_pair(ASSETS / "target", ASSETS / "dflash")


@pytest.fixture(scope="session")
def tiny64(tiny: ModelPair) -> ModelPair:
    """The same weights in double precision, where rounding decides next to nothing."""
    target, dflash = (deepcopy(model).to(torch.float64) for model in (tiny.target, tiny.dflash))
    return ModelPair(target, tiny.tokenizer, dflash, None, tiny.device, torch.float64)


@pytest.fixture(scope="session")
def make_requests(tiny: ModelPair) -> MakeRequests:
    """The first shipped prompts; one of their common tokens ends a text, so that some end early."""
    lines = (ASSETS / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line) for line in lines]

    def make(count: int, tokens: int = 24, temperature: float = 0.0, stop: str | None = None) -> list[Request]:
        ends = {tiny.tokenizer.eos_token_id}
        if stop is not None:
            ends.add(tiny.tokenizer(stop, add_special_tokens=False)["input_ids"][-1])
        return [
            Request(
                prompt["id"],
                tuple(tiny.tokenizer(prompt["turns"][0])["input_ids"]),
                tokens,
                Sampling(temperature=temperature, seed=5),
                frozenset(ends),
            )
            for prompt in prompts[::29][:count]
        ]

    return make


def traced(pair: ModelPair, requests: Sequence[Request], nodes: int = 64, batch_size: int = 8) -> TraceSet:
    """A recording in memory."""
    traces = []
    for request, found in zip(requests, record(pair, requests, nodes, batch_size), strict=True):
        sampling = request.sampling
        key = Key(request.prompt_id, 0, "shipped", "any", 0, sampling.seed, sampling.temperature)
        traces.append(found.trace(key, len(request.token_ids)))
    return TraceSet.of(traces)


@pytest.fixture(scope="session")
def make_traces() -> Callable[..., TraceSet]:
    return traced
