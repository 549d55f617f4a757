"""At temperature 0, in float32, a tree gives the tokens of autoregressive decoding: in a real vLLM, to the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm_cases import BASELINE, BUDGETS, CHAIN, CUT, EDGE, MIXED, MIXED_1, MIXED_4, NEW, stopping
from vllm_jobs import Case, EngineHost, Job, Outcome, greedy, prompt_tokens

pytestmark = pytest.mark.vllm

SHAPES: tuple[tuple[int, dict[str, Any]], ...] = (
    (16, {"width": 2}),
    (24, {"depth": 4}),
    (12, {"width": 3, "depth": 6, "force_spine": True}),
    (32, {"min_log_prob": -2.5}),
    (15, {"width": 1}),
    (1, {"depth": 1}),
)


def same(found: Outcome, expected: Outcome) -> None:
    """The same tokens, texts and endings, sequence by sequence."""
    assert found.refused == {}
    for one, other in zip(found.outputs, expected.outputs, strict=True):
        assert one == other


@pytest.mark.parametrize("case", [MIXED_4, MIXED_1], ids=lambda case: case.name)
@pytest.mark.parametrize("nodes", BUDGETS)
def test_tree_equals_autoregressive(engines: EngineHost, nodes: int, case: Case) -> None:
    found = engines.run(Job("tree", (MIXED_4, MIXED_1), nodes=nodes))[case.name]
    expected = engines.run(BASELINE)[case.name]
    same(found, expected)
    assert found.most == case.in_flight
    assert found.counters["vllm:spec_decode_num_accepted_tokens"] > 0


@pytest.mark.parametrize("case", [MIXED_4, MIXED_1, CUT, EDGE], ids=lambda case: case.name)
def test_chain_equals_autoregressive(engines: EngineHost, case: Case) -> None:
    same(engines.run(CHAIN)[case.name], engines.run(BASELINE)[case.name])


@pytest.mark.parametrize(("nodes", "shape"), SHAPES, ids=str)
def test_every_shape_of_tree_equals_autoregressive(engines: EngineHost, nodes: int, shape: dict[str, Any]) -> None:
    found = engines.run(Job("tree", (MIXED_4,), nodes=nodes, tree=shape))[MIXED_4.name]
    same(found, engines.run(BASELINE)[MIXED_4.name])
    deepest = max(len(line.path) - 1 for line in found.trace)
    assert 1 <= deepest <= shape.get("depth", 15)
    if shape.get("width") == 1:
        assert all(line.path == tuple(range(len(line.path))) for line in found.trace)


def test_a_tree_cut_by_max_tokens_or_by_the_context(engines: EngineHost) -> None:
    found, expected = engines.run(Job("tree", (CUT, EDGE), nodes=24)), engines.run(BASELINE)
    for case in (CUT, EDGE):
        same(found[case.name], expected[case.name])
    assert overshoots(found[CUT.name]) >= 3
    lengths = [len(tokens or ()) for tokens in found[EDGE.name].token_ids]
    assert lengths == [1, 2, 9, 17, 40]  # all that the context of 1024 leaves


def test_stops_inside_an_accepted_path(engines: EngineHost) -> None:
    plain = engines.run(BASELINE)[MIXED_4.name]
    first = [sequences[0] for sequences in plain.outputs if sequences is not None]
    cases = stopping(
        {prompt: one.token_ids for prompt, one in zip(MIXED, first, strict=True)},
        {prompt: one.text for prompt, one in zip(MIXED, first, strict=True)},
    )
    expected = engines.run(Job("autoregressive", cases))
    found = engines.run(Job("tree", cases, nodes=24))
    for case in cases:
        same(found[case.name], expected[case.name])
        ended = [one[0].finish_reason for one in found[case.name].outputs if one is not None]
        assert ended.count("stop") == len(ended)
        assert overshoots(found[case.name]) >= 5


def overshoots(outcome: Outcome) -> int:
    """Requests whose last accepted path went on past their end: 1 token of prefill, then each round's path + bonus."""
    beyond = 0
    for request, tokens in enumerate(outcome.token_ids):
        raw = 1 + sum(len(path) for path in outcome.paths(request))
        beyond += tokens is not None and raw > len(tokens)
    return beyond


def test_a_scheduler_that_truncates_trees_and_skips_requests(engines: EngineHost) -> None:
    """Too few tokens a round for four requests of 17: trees are cut to a prefix, and requests left out."""
    job = Job("tree", (MIXED_4,), nodes=16, engine={"max_num_batched_tokens": 64})
    found = engines.run(job)[MIXED_4.name]
    same(found, engines.run(BASELINE)[MIXED_4.name])
    assert found.skipped > 0
    cut = [line for line in found.trace if line.nodes < 16]
    assert len(cut) > 10
    assert any(len(line.path) > 1 for line in cut)


def test_prefix_cache(engines: EngineHost) -> None:
    """The same prompts again, and again with what was generated after them: read from the cache, and the same text."""
    prompts = tuple(prompt for prompt in prompt_tokens()[:24] if len(prompt) > 80)[:5]
    first = Case("first", prompts, tuple(greedy(2 * NEW) for _ in prompts))
    again = replace(first, name="again")
    plain = engines.run(Job("autoregressive", (first,)))["first"]
    extended = tuple((*prompt, *(tokens or ())) for prompt, tokens in zip(prompts, plain.token_ids, strict=True))
    longer = Case("longer", extended, tuple(greedy(NEW) for _ in prompts))
    expected = engines.run(Job("autoregressive", (longer,)))["longer"]
    cached = {"enable_prefix_caching": True, "block_size": 32}
    found = engines.run(Job("tree", (first, again, longer), nodes=16, engine=cached))
    same(found["first"], plain)
    same(found["again"], plain)
    same(found["longer"], expected)
    assert all(count == 0 for count in found["first"].cached_tokens)
    assert all((count or 0) >= 32 for count in found["again"].cached_tokens)
    # Blocks that hold accepted paths are read as well: a path that was not compacted would show here.
    assert any((count or 0) > len(prompt) for count, prompt in zip(found["longer"].cached_tokens, prompts, strict=True))


def test_abort_leaves_the_others_alone(engines: EngineHost) -> None:
    aborted = {"1": 3, "2": 12, "5": 20, "9": 1}
    case = Case("aborted", MIXED, tuple(greedy(NEW) for _ in MIXED), abort=aborted)
    outcomes = engines.run(Job("tree", (case, MIXED_4), nodes=16))
    found, expected = outcomes["aborted"], engines.run(BASELINE)[MIXED_4.name]
    for index, (one, other) in enumerate(zip(found.outputs, expected.outputs, strict=True)):
        assert one == (None if str(index) in aborted else other)
    same(outcomes[MIXED_4.name], expected)  # and nothing is left of them


def test_preemption(engines: EngineHost) -> None:
    """A cache too small for four: requests are put back, prefilled again, and end with the same tokens."""
    prompts = tuple(prompt[:90] for prompt in prompt_tokens()[:24] if len(prompt) >= 90)[:6]
    case = Case("tiny cache", prompts, tuple(greedy(80) for _ in prompts))
    expected = engines.run(Job("autoregressive", (case,)))["tiny cache"]
    tiny = {"max_model_len": 256, "block_size": 32, "num_gpu_blocks_override": 18}
    found = engines.run(Job("tree", (case,), nodes=16, engine=tiny))["tiny cache"]
    assert found.counters["vllm:num_preemptions"] > 0
    same(found, expected)
