"""What is asked in each repeat, and from when its clocks run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from arms import arm
from completions_made import completion

from ddbench.records import Cell
from runners.base import Prompt
from runners.counts import SpecCounters
from runners.load import LoadResult
from runners.prompts import Tokenized
from runners.rows import request_rows, request_seed, requests_of
from runners.vllm.counts import tally

ITEMS = [Tokenized(Prompt(name, "data", "code", ("text",)), (1, 2)) for name in ("a", "b")]
CELL = Cell(arm("autoregressive"), "w", "h", 1, 8, 5, 0.8, 0.9, 20, 7, 2, 0)


def test_the_repeats_of_a_prompt_draw_from_different_seeds() -> None:
    first, second = (requests_of(CELL, ITEMS, repeat, 5, frozenset({9, 3}), False) for repeat in (0, 1))
    seeds = [each.request.seed for each in (*first, *second)]
    assert len(set(seeds)) == 4
    assert seeds == [request_seed(seed, name) for seed in (7, 8) for name in ("a", "b")]
    other_arm = replace(CELL, arm=arm("dflash"))
    assert requests_of(other_arm, ITEMS, 1, 5, frozenset({9, 3}), False) == second
    assert [each.repeat for each in (*first, *second)] == [0, 0, 1, 1]
    request = first[0].request
    assert replace(second[0].request, seed=request.seed) == request
    assert (request.temperature, request.top_p, request.top_k, request.stop_ids) == (0.8, 0.9, 20, (3, 9))


def test_the_clocks_of_a_request_run_from_its_arrival() -> None:
    """Both were sent at 101.0 and had their first token at 102.0; the second had arrived 0.75 s before."""
    base = completion([0] * 4)
    sent_s, clocks_s = 101.0, (102.0, 102.5, 103.0, 103.5, 104.0)
    done = replace(base, start_s=sent_s, first_token_s=102.0, chunk_times_s=clocks_s, finish_s=104.0)
    result = LoadResult((done, done), (0.0, 0.75), 100.0, 105.0, 2)
    sent = requests_of(CELL, ITEMS, 1, 5, frozenset(), True)
    prompt, late = request_rows(CELL, sent, result, tally(result.completions, 0, SpecCounters()))
    assert (prompt["start_s"], prompt["ttft_s"], prompt["latency_s"]) == pytest.approx((1.0, 1.0, 3.0))
    assert (late["start_s"], late["ttft_s"], late["latency_s"]) == pytest.approx((0.25, 1.75, 3.75))
    assert [(row["prompt_id"], row["repeat"], row["seed"]) for row in (prompt, late)] == [("a", 1, 8), ("b", 1, 8)]
    waiting = replace(result, completions=(done, replace(done, first_token_s=None, error="cut")))
    assert request_rows(CELL, sent, waiting, tally(result.completions, 0, SpecCounters()))[1]["ttft_s"] is None
