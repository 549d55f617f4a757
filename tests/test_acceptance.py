"""Every tool's acceptance length from the same integers: worked out by hand, and by the obvious loop over rounds.

The three requests of the golden example:

    first:  T = 9 output tokens, S = 3 rounds that accept 2, 1 and 4 drafted tokens (A = 7); the last one is cut.
    second: T = 4, S = 2, accepting 0 and 1 (A = 1).
    third:  T = 1, S = 0: the token that the prefill gave was the last.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddbench.acceptance import VARIANTS
from ddbench.metrics import Counts


def counts(tokens: list[int], rounds: list[list[int]]) -> Counts:
    """Requests of so many output tokens whose rounds accept the given numbers."""
    clocks = {name: [0.0] * len(tokens) for name in ("start_s", "ttft_s", "latency_s")}
    raw = [sum(each) for each in rounds]
    return Counts.from_columns(
        {
            "output_tokens": tokens,
            "rounds": [len(each) for each in rounds],
            "drafted": [4 * len(each) for each in rounds],
            "accepted": raw,
            "accepted_raw": raw,
            "accept_histogram": [np.bincount(each) if each else [] for each in rounds],
            **clocks,
        }
    )


GOLDEN = {
    "ddbench": (8 + 3 + 0) / 5,
    "vllm_counters": 1 + 8 / 5,
    "vllm_request": ((1 + 7 / 3) + (1 + 1 / 2) + 1) / 3,
    "sglang_request": (9 / 3 + 4 / 2) / 2,
    "sglang_server": (8 + 5) / 5,
    "specforge": (9 + 4 + 1) / 5,
    "dflash_server": (9 / 3 + 4 / 2) / 2,
    "dflash_scripts": (10 / 3 + 3 / 2) / 2,
    "spec_bench": (3 + 2 + 5 + 1 + 2) / 5,
    "specdec_bench": (9 / 4 + 4 / 3 + 1 / 1) / 3,
}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_golden(variant) -> None:  # type: ignore[no-untyped-def]
    assert variant.value(counts([9, 4, 1], [[2, 1, 4], [0, 1], []])) == pytest.approx(GOLDEN[variant.name], rel=1e-12)


def test_every_variant_is_worked_out_and_named_once() -> None:
    names = [variant.name for variant in VARIANTS]
    assert sorted(names) == sorted(GOLDEN)
    assert all(variant.definition and variant.averaging for variant in VARIANTS)
    assert names[0] == "ddbench"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_without_speculation_there_is_none(variant) -> None:  # type: ignore[no-untyped-def]
    assert variant.value(counts([9, 4], [[], []])) is None
    assert variant.value(counts([], [])) is None


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_an_unknown_count_makes_it_null(variant) -> None:  # type: ignore[no-untyped-def]
    known = counts([9, 4], [[2, 1, 4], [0, 1]])
    unknown = Counts(**{**known.__dict__, "rounds": np.asarray([np.nan, 2.0])})
    value = variant.value(unknown)
    assert value is None or np.isfinite(value)


REQUESTS = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=10), min_size=1, max_size=6)


@given(REQUESTS, st.integers(0, 3))
def test_by_the_obvious_loop(rounds: list[list[int]], cut: int) -> None:
    """Each definition again, in words of rounds and requests; ``cut`` tokens of each last round do not fit."""
    tokens = [1 + sum(a + 1 for a in each) - min(cut, each[-1]) for each in rounds]
    every = [a for each in rounds for a in each]
    mean = np.mean
    expected = {
        "ddbench": sum(t - 1 for t in tokens) / len(every),
        "vllm_counters": 1 + sum(every) / len(every),
        "vllm_request": mean([1 + mean(each) for each in rounds]),
        "sglang_request": mean([t / len(each) for t, each in zip(tokens, rounds, strict=True)]),
        "sglang_server": mean([a + 1 for a in every]),
        "specforge": sum(tokens) / len(every),
        "dflash_server": mean([t / len(each) for t, each in zip(tokens, rounds, strict=True)]),
        "dflash_scripts": mean([mean([a + 1 for a in each]) for each in rounds]),
        "spec_bench": mean([a + 1 for a in every]),
        "specdec_bench": mean([t / (len(each) + 1) for t, each in zip(tokens, rounds, strict=True)]),
    }
    known = counts(tokens, rounds)
    for variant in VARIANTS:
        assert variant.value(known) == pytest.approx(expected[variant.name]), variant.name


@given(REQUESTS)
def test_what_the_prefill_token_does(rounds: list[list[int]]) -> None:
    """Counting it raises T / S above tokens per round; as a step of its own it lowers the mean."""
    known = counts([1 + sum(a + 1 for a in each) for each in rounds], rounds)
    value = {variant.name: variant.value(known) for variant in VARIANTS}
    assert value["specforge"] > value["ddbench"]  # type: ignore[operator]
    assert value["specdec_bench"] <= value["sglang_request"]  # type: ignore[operator]


def test_scripts_count_the_last_round_whole() -> None:
    """One request of two rounds that accepted 2 and 4 drafted tokens, the last cut to 1: (3 + 5) / 2 rounds, uncut."""
    whole = counts([5], [[2, 4]])
    cut = dataclasses.replace(whole, accepted=np.asarray([3.0]))
    value = next(variant.value for variant in VARIANTS if variant.name == "dflash_scripts")
    assert value(cut) == pytest.approx(4.0)
