"""Real text of the tiny model, which loops by itself now and then: no arm that is sound may be blamed."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import ddbench
from ddbench.decoding import ModelPair, Request, Sampling, Strategy, decode, load_pair
from ddbench.records import REQUESTS
from experiments.workloads import read_prompts
from reports.frames import to_frame
from reports.guards.degeneracy import degeneracy
from reports.points import Point
from runners.prompts import stop_ids

ASSETS = Path(ddbench.__file__).parent / "assets"
SEEDS = range(3)


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return load_pair(ASSETS / "target", ASSETS / "dflash")


def text_of(pair: ModelPair, strategy: Strategy, sampling: Sampling, tokens: int = 40) -> pd.DataFrame:
    prompts = read_prompts("workload.path", "asset://prompts.jsonl")[:12]
    stop = stop_ids(pair.tokenizer, pair.target.generation_config)
    requests = [
        Request(prompt.id, tuple(pair.tokenizer(prompt.turns[0])["input_ids"]), tokens, sampling, stop)
        for prompt in prompts
    ]
    rows = [
        {
            "prompt_id": made.request.prompt_id,
            "output_tokens": len(made.output_token_ids),
            "finish_reason": made.finish_reason,
            "output_token_ids": list(made.output_token_ids),
        }
        for made in decode(pair, strategy, requests, 12)
    ]
    return to_frame(pa.Table.from_pylist(rows, schema=REQUESTS))


def point(requests: pd.DataFrame) -> Point:
    return Point({}, requests, (), ())


def test_arms_that_sample_by_themselves_are_not_blamed(pair: ModelPair) -> None:
    """The same model with other seeds: other text, and as good."""
    plain = Strategy("autoregressive")
    arms = [point(text_of(pair, plain, Sampling(1.0, seed=seed))) for seed in SEEDS]
    assert len({str(arm.requests["output_token_ids"].map(list).tolist()) for arm in arms}) == len(arms)
    for arm, baseline in permutations(arms, 2):
        assert degeneracy(arm, baseline)["degenerate_reason"] is None
    assert all(degeneracy(arm, None)["degenerate_reason"] is None for arm in arms)


def test_greedy_text_that_loops_at_times_is_not_blamed(pair: ModelPair) -> None:
    plain = point(text_of(pair, Strategy("autoregressive"), Sampling()))
    chain = point(text_of(pair, Strategy("dflash"), Sampling()))
    for arm, baseline in ((plain, plain), (chain, plain), (chain, None)):
        row = degeneracy(arm, baseline)
        assert row["degenerate_reason"] is None
        assert row["distinct_4gram_share"] < 1, "nothing repeats: the test would prove nothing"
