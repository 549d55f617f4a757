"""The trees branch, paths leave their spine, and what the trace says is what the engine counts."""

from __future__ import annotations

import pytest
from vllm_cases import BUDGETS, MIXED, MIXED_1, MIXED_4
from vllm_jobs import EngineHost, Job, Outcome

pytestmark = pytest.mark.vllm


def branched(outcome: Outcome) -> int:
    """Rounds whose path is no prefix of the tree's rows: its tokens had to be moved."""
    return sum(line.path != tuple(range(len(line.path))) for line in outcome.trace)


@pytest.mark.parametrize(("nodes", "least"), [(3, 0.05), (7, 0.1), (16, 0.3), (48, 0.3)])
def test_paths_leave_the_spine(engines: EngineHost, nodes: int, least: float) -> None:
    outcome = engines.run(Job("tree", (MIXED_4, MIXED_1), nodes=nodes))[MIXED_4.name]
    assert branched(outcome) >= least * len(outcome.trace)


@pytest.mark.parametrize("nodes", BUDGETS)
def test_the_cache_has_room_for_the_drafters_block(engines: EngineHost, nodes: int) -> None:
    outcome = engines.run(Job("tree", (MIXED_4, MIXED_1), nodes=nodes))[MIXED_4.name]
    assert outcome.lookahead == max(nodes, 15) + 1  # the block of the shipped drafter: an anchor and 15 masks


@pytest.mark.parametrize("name", [MIXED_4.name, MIXED_1.name])
@pytest.mark.parametrize("nodes", BUDGETS)
def test_the_trace_is_what_the_engine_counts(engines: EngineHost, nodes: int, name: str) -> None:
    outcome = engines.run(Job("tree", (MIXED_4, MIXED_1), nodes=nodes))[name]
    accepted = [len(line.path) - 1 for line in outcome.trace]
    # vLLM may pad the prefill of a one-token prompt with drafts that nobody made, to look like the rows beside it.
    padded = outcome.counters["vllm:spec_decode_num_drafts"] - len(outcome.trace)
    assert 0 <= padded <= sum(len(prompt) == 1 for prompt in MIXED)
    drafted = sum(line.nodes for line in outcome.trace) + padded * nodes
    assert outcome.counters["vllm:spec_decode_num_draft_tokens"] == drafted
    assert outcome.counters["vllm:spec_decode_num_accepted_tokens"] == sum(accepted)
    by_place = [sum(count > place for count in accepted) for place in range(nodes)]
    assert list(outcome.accepted_per_position) == by_place
    for request, tokens in enumerate(outcome.token_ids):
        assert tokens is not None
        assert len(tokens) <= 1 + sum(len(path) for path in outcome.paths(request))
