"""What cannot be is refused before anything runs, in one line that names the key, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ddbench.decoding import ModelPair, Request, Sampling, Strategy, decode
from ddbench.errors import ConfigError, DrafterMismatch

GREEDY = Sampling()


@pytest.mark.parametrize(
    ("make", "key", "said"),
    [
        (lambda: Strategy("medusa"), "strategy", "one of autoregressive, dflash, eagle, ddtree"),
        (lambda: Strategy("ddtree", width=0), "strategy.width", "an integer >= 1"),
        (lambda: Strategy("ddtree", nodes=0), "strategy.nodes", "an integer >= 1"),
        (lambda: Strategy("dflash", depth=-1), "strategy.depth", "an integer >= 1"),
        (lambda: Strategy("dflash", width=2), "strategy.width", "dflash has no width"),
        (lambda: Strategy("dflash", nodes=2), "strategy.nodes", "dflash has no nodes"),
        (lambda: Strategy("autoregressive", depth=2), "strategy.depth", "autoregressive has no depth"),
        (lambda: Strategy("eagle"), "strategy.depth", "drafter passes"),
        (lambda: Strategy("eagle", depth=3, width=2), "strategy.nodes", "reranked"),
        (lambda: Strategy("eagle", depth=3, force_spine=True), "strategy.force_spine", "not a ddtree"),
        (lambda: Strategy("dflash", min_log_prob=-1.0), "strategy.min_log_prob", "not a ddtree"),
        (lambda: Strategy("ddtree", min_log_prob=0.5), "strategy.min_log_prob", "a log-probability <= 0"),
        (lambda: Strategy("ddtree", min_log_prob=float("nan")), "strategy.min_log_prob", "a log-probability <= 0"),
        (lambda: Sampling(-0.1), "temperature", ">= 0"),
        (lambda: Sampling(float("nan")), "temperature", ">= 0"),
        (lambda: Sampling(top_p=0.0), "top_p", "in (0, 1]"),
        (lambda: Sampling(top_k=-1), "top_k", ">= 0"),
        (lambda: Request("p", (), 4, GREEDY, frozenset()), "token_ids", "at least one token"),
        (lambda: Request("p", (1,), 0, GREEDY, frozenset()), "max_new_tokens", ">= 1"),
    ],
)
def test_values_that_cannot_be(make: Callable[[], Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.key == key
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "key", "said"),
    [
        (Strategy("dflash", depth=8), "strategy.depth", "at most 7"),
        (Strategy("ddtree", nodes=20, depth=8), "strategy.depth", "at most 7"),
        (Strategy("ddtree", nodes=6, force_spine=True), "strategy.nodes", "at least the depth of 7"),
        (Strategy("ddtree", nodes=3, depth=4, force_spine=True), "strategy.nodes", "at least the depth of 4"),
        (Strategy("eagle", depth=3, width=2, nodes=11), "strategy.nodes", "at most 10"),
        (Strategy("eagle", depth=3, nodes=4), "strategy.nodes", "at most 3"),
        (Strategy("eagle", depth=3, width=19, nodes=4), "strategy.width", "at most 18"),
    ],
)
def test_shapes_that_the_pair_cannot_draft(
    pair: ModelPair, toys: SimpleNamespace, strategy: Strategy, key: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        decode(pair, strategy, toys.requests(2), 2)
    assert caught.value.key == key
    assert said in str(caught.value)


def test_shapes_at_the_limit_run(pair: ModelPair, toys: SimpleNamespace) -> None:
    for strategy in (
        Strategy("dflash", depth=7),
        Strategy("ddtree", nodes=7, force_spine=True),
        Strategy("eagle", depth=3, width=2, nodes=10),
        Strategy("ddtree", nodes=500, width=24, depth=3),
    ):
        assert len(decode(pair, strategy, toys.requests(2, 4), 2)) == 2


@pytest.mark.parametrize("name", ["dflash", "ddtree", "eagle"])
def test_missing_drafter(pair: ModelPair, toys: SimpleNamespace, name: str) -> None:
    bare = replace(pair, dflash=None, eagle=None)
    with pytest.raises(ConfigError, match=f"^strategy='{name}'.*drafter"):
        decode(bare, Strategy(name, depth=2), toys.requests(1), 1)


def test_drafter_of_another_target(pair: ModelPair, toys: SimpleNamespace) -> None:
    assert pair.dflash is not None
    shrunk = replace(pair.dflash.config, num_target_layers=36)
    other = toys.dflash()
    other.config = shrunk
    with pytest.raises(DrafterMismatch, match="number of target layers of 4, the drafter's is 36"):
        decode(replace(pair, dflash=other), Strategy("dflash"), toys.requests(1), 1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"token_ids": tuple([1] * 250)}, "within the context of 256, not 250 prompt + 32 new tokens"),
        ({"max_new_tokens": 256}, "within the context of 256"),
        ({"token_ids": (1, 24)}, "token ids from 0 to 23"),
        ({"token_ids": (-1,)}, "token ids from 0 to 23"),
    ],
)
@pytest.mark.parametrize("name", ["autoregressive", "ddtree"])
def test_prompts_that_do_not_fit(
    pair: ModelPair, toys: SimpleNamespace, name: str, change: dict[str, Any], said: str
) -> None:
    """The last of several: nothing has started, so nothing is lost."""
    finished: list[Any] = []
    requests = toys.requests(3)
    requests[2] = replace(requests[2], prompt_id="bad", **change)
    with pytest.raises(ConfigError, match=r"^prompt='bad'") as caught:
        decode(pair, Strategy(name), requests, 1, on_finish=finished.append)
    assert said in str(caught.value)
    assert finished == []


def test_max_length(pair: ModelPair, toys: SimpleNamespace) -> None:
    requests = toys.requests(3, 10)  # the longest takes 33 tokens
    assert len(decode(pair, Strategy("dflash"), requests, 2, max_length=33)) == 3
    with pytest.raises(ConfigError, match="within the context of 32"):
        decode(pair, Strategy("dflash"), requests, 2, max_length=32)
    with pytest.raises(ConfigError, match="max_length=257"):
        decode(pair, Strategy("dflash"), requests, 2, max_length=257)


def test_batch_size(pair: ModelPair, toys: SimpleNamespace) -> None:
    with pytest.raises(ConfigError, match="batch_size=0"):
        decode(pair, Strategy("autoregressive"), toys.requests(1), 0)
