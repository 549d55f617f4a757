"""Round by round, the plug-in accepts what the reference engine accepts: same pair, same prompts, same shapes.

Float32 on both sides: no tie or near-tie of these prompts falls differently, so the counts are compared as integers.

One thing stands between the engines, and it is stock vLLM's: its DFlash norms the context's keys of all layers in one
call, with one weight a layer, and the CPU build of that operation reads the first layer's weight for all of them. Text
is not touched by it, drafts are. So the reference is compared twice: as it is with an engine in which that call is
mended, and with the same fault with the engine as it is (unless this version's operation is right).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm_cases import CHAIN, MIXED, MIXED_1, MIXED_4, NEW
from vllm_jobs import ASSETS, EngineHost, Job, Outcome

from ddbench.decoding import Generation, ModelPair, Request, Sampling, Strategy, decode, load_pair
from ddbench.drafters.attention import KeyValue

pytestmark = pytest.mark.vllm

MENDED = replace(MIXED_4, name="mended", plant="context keys normed layer by layer")


@cache
def pair() -> ModelPair:
    return load_pair(str(ASSETS / "target"), dflash=str(ASSETS / "dflash"), device="cpu", dtype="float32")


@cache
def engine_norms_by_layer() -> bool:
    """Whether this vLLM's rms_norm takes a weight for each first index."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    ones, weights = torch.ones(2, 1, 1, 16), torch.tensor([1.0, 3.0])[:, None].expand(2, 16).contiguous()
    found = torch.empty_like(ones)
    _custom_ops.rms_norm(found, ones, weights, 1e-6)
    return bool(found[1, 0, 0, 0] > 2)


@contextmanager
def first_layer_norms_all() -> Iterator[None]:
    """While it is open, the reference's drafter norms the context's keys as the engine does."""
    drafter = pair().dflash
    assert drafter is not None
    layers = [layer.self_attn for layer in drafter.layers]  # type: ignore[union-attr]
    own = [attention.k_norm for attention in layers]

    def context_kv(context: Tensor, positions: Tensor) -> list[KeyValue]:
        for attention in layers:
            attention.k_norm = own[0]
        try:
            return type(drafter).context_kv(drafter, context, positions)
        finally:
            for attention, norm in zip(layers, own, strict=True):
                attention.k_norm = norm

    drafter.context_kv = context_kv  # type: ignore[method-assign]
    try:
        yield
    finally:
        del drafter.context_kv


def reference(strategy: Strategy, like_stock: bool) -> list[Generation]:
    requests = [
        Request(str(index), prompt, NEW, Sampling(), stop_ids=frozenset({0})) for index, prompt in enumerate(MIXED)
    ]
    if not like_stock or engine_norms_by_layer():
        return decode(pair(), strategy, requests, batch_size=4)
    with first_layer_norms_all():
        return decode(pair(), strategy, requests, batch_size=4)


def accepts_alike(found: Outcome, expected: list[Generation]) -> None:
    for index, generation in enumerate(expected):
        assert found.token_ids[index] == generation.output_token_ids
        assert [len(path) - 1 for path in found.paths(index)] == [one.accepted_raw for one in generation.rounds]


def counts_alike(found: Outcome, expected: list[Generation]) -> None:
    counts = Counter(one.accepted_raw for generation in expected for one in generation.rounds)
    by_place = [sum(times for length, times in counts.items() if length > place) for place in range(15)]
    padded = found.counters["vllm:spec_decode_num_drafts"] - counts.total()
    assert 0 <= padded <= sum(len(prompt) == 1 for prompt in MIXED)  # see test_branching: drafts that nobody made
    places = len(found.accepted_per_position)  # as many as nodes
    assert list(found.accepted_per_position)[:15] == by_place[:places]
    assert not any(by_place[places:])


@pytest.mark.parametrize(
    ("nodes", "shape", "cases"),
    [
        (3, {}, 2),
        (16, {}, 2),
        (48, {}, 2),
        (16, {"width": 2}, 1),
        (24, {"depth": 4}, 1),
        (12, {"width": 3, "depth": 6, "force_spine": True}, 1),
        (32, {"min_log_prob": -2.5}, 1),
    ],
    ids=str,
)
def test_trees_accept_what_the_reference_accepts(
    engines: EngineHost, nodes: int, shape: dict[str, Any], cases: int
) -> None:
    job = Job("tree", (MIXED_4, MIXED_1)[:cases], nodes=nodes, tree=shape)  # as in test_lossless: it runs once
    found = engines.run(job)[MIXED_4.name]
    expected = reference(Strategy("ddtree", nodes=nodes, **shape), like_stock=True)
    accepts_alike(found, expected)
    counts_alike(found, expected)


def test_the_chain_accepts_what_the_reference_accepts(engines: EngineHost) -> None:
    counts_alike(engines.run(CHAIN)[MIXED_4.name], reference(Strategy("dflash"), like_stock=True))


def test_mended_both_accept_what_the_reference_accepts_as_it_is(engines: EngineHost) -> None:
    tree = engines.run(Job("tree", (MENDED,), nodes=16))["mended"]
    accepts_alike(tree, reference(Strategy("ddtree", nodes=16), like_stock=False))
    chain = engines.run(Job("chain", (MENDED,), nodes=15))["mended"]
    counts_alike(chain, reference(Strategy("dflash"), like_stock=False))
