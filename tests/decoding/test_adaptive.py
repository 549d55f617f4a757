"""Budgets chosen at every step: the text is the target's own whatever is chosen, and a replay decides the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from ddbench.adaptive import (
    Adaptive,
    CaDDTree,
    Candidates,
    Choice,
    Control,
    CostOptimal,
    Fixed,
    Offer,
    Policy,
    StepCosts,
    usual_candidates,
)
from ddbench.decoding import Generation, ModelPair, Request, Sampling, Strategy, decode
from ddbench.decoding.adaptive import AdaptiveLoop
from ddbench.errors import ConfigError
from ddbench.replay import PLAIN, Offers, Steps, Trace, TraceSet, replay_policy
from ddbench.replay.record import record
from ddbench.replay.trace import Key

DEPTH, NODES = 7, 24
CANDIDATES = usual_candidates(NODES, DEPTH)
TREE = Strategy("ddtree", nodes=NODES)


@dataclass(frozen=True)
class Costs:
    """Milliseconds: a step that is dear for the drafter makes autoregressive steps win now and then."""

    draft: float = 1.0
    token: float = 0.1

    def round_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return 0.2 + self.chain_ms(verify_width, batch, context)

    def chain_ms(self, verify_width: Any, batch: Any, context: Any) -> Any:
        return self.draft + 2.0 + self.token * np.asarray(verify_width) * batch + 1e-3 * batch * context

    def autoregressive_ms(self, batch: Any, context: Any) -> Any:
        return 2.0 + self.token * np.asarray(batch) + 1e-3 * np.asarray(batch) * context


@dataclass(frozen=True)
class Coin:
    """Takes anything, by a seeded coin; every other step without the drafter."""

    name: str = "coin"

    def start(self, candidates: Candidates, costs: StepCosts, depth: int) -> Control:
        return Toss(candidates, np.ones((2, depth)))


@dataclass
class Toss:
    candidates: Candidates
    factors: np.ndarray
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    kept: list[np.ndarray] = field(default_factory=list)

    def drafts(self, rows: int, context: float) -> bool:
        return bool(self.rng.random() < 0.5)

    def choose(self, offer: Offer) -> Choice:
        return self.candidates.all[int(self.rng.integers(len(self.candidates.all)))]

    def learn(self, kept: np.ndarray) -> None:
        self.kept.append(kept)


POLICIES: list[Policy] = [Coin(), CostOptimal(trial=4, looking=0.2), CaDDTree(), Fixed(Choice("autoregressive", 0))]


@pytest.mark.parametrize(
    ("policy", "batch_size"),
    [(POLICIES[0], 1), *((policy, 3) for policy in POLICIES)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_lossless(pair: ModelPair, toys: SimpleNamespace, policy: Policy, batch_size: int) -> None:
    """Requests of many lengths: rows are refilled and moved between steps of both kinds."""
    requests = toys.requests(8, [1, 30, 3, 17, 2, 29, 8, 12])
    expected = [toys.reference(pair.target, request) for request in requests]
    out = decode(pair, TREE, requests, batch_size, adaptive=Adaptive(policy, CANDIDATES, Costs(draft=3.0)))
    assert [each.output_token_ids for each in out] == expected
    rounds = [each for generation in out for each in generation.rounds]
    assert all(each.verify_width is not None and each.verify_width <= (each.chosen_nodes or 0) + 1 for each in rounds)
    assert all(len(each.rounds) > 0 for each in out if len(each.output_token_ids) > 1)
    if policy.name == "coin":
        assert {each.choice for each in rounds} == {"tree", "chain", "autoregressive"}
        assert any(each.accepted > 0 for each in rounds)


def test_sampled_text_is_the_autoregressive_arms(pair: ModelPair, toys: SimpleNamespace) -> None:
    requests = toys.requests(sampling=Sampling(1.0, seed=3))
    expected = [each.output_token_ids for each in decode(pair, Strategy("autoregressive"), requests, 8)]
    for policy in POLICIES[:2]:
        out = decode(pair, TREE, requests, 3, adaptive=Adaptive(policy, CANDIDATES, Costs()))
        assert [each.output_token_ids for each in out] == expected


def p_value(out: list[Generation], law: torch.Tensor) -> float:
    """Pearson's chi-square of the second tokens against their law; rare tokens are put together."""
    counts = Counter(each.output_token_ids[1] for each in out)
    expected = law.double() * len(out)
    seen = torch.tensor([counts[token] for token in range(len(law))], dtype=torch.float64)
    often = expected >= 5
    cells = torch.cat([expected[often], expected[~often].sum()[None]])
    found = torch.cat([seen[often], seen[~often].sum()[None]])
    return float(chi2.sf(float(((found - cells) ** 2 / cells).sum()), len(cells) - 1))


@pytest.mark.parametrize("planted", [False, True])
def test_emitted_tokens_have_the_targets_law(
    pair: ModelPair, toys: SimpleNamespace, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second token over 1200 seeds, fixed beforehand; a right sampler fails once in 10,000 choices of seeds.

    Planted: autoregressive steps that are greedy, half of all; the same test must find them.
    """
    if planted:
        plain = AdaptiveLoop._plain_step

        def greedy(loop: AdaptiveLoop) -> None:
            if not loop._ready:
                loop._plain.membership_changed()
                loop._ready = True
            loop._plain._choose = lambda logits, positions: logits.argmax(-1)  # type: ignore[assignment]
            plain(loop)

        monkeypatch.setattr(AdaptiveLoop, "_plain_step", greedy)
    prompt = toys.requests(4)[3].token_ids
    requests = [Request("law", prompt, 3, Sampling(1.0, seed=seed), frozenset()) for seed in range(1200)]
    out = decode(pair, TREE, requests, 48, adaptive=Adaptive(Coin(), CANDIDATES, Costs()))
    with torch.inference_mode():
        first = pair.target(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        context = [[*prompt, token] for token in range(toys.vocab)]
        after = pair.target(torch.tensor(context)).logits[:, -1].softmax(-1)
    found = p_value(out, (first[:, None] * after).sum(0))
    assert found < 1e-6 if planted else found > 1e-4


def recorded(pair: ModelPair, requests: list[Request]) -> TraceSet:
    traces = []
    for request, each in zip(requests, record(pair, requests, NODES, 4), strict=True):
        key = Key(request.prompt_id, 0, "toy", "any", 0, 0, request.sampling.temperature)
        output, tail = (np.asarray(ids) for ids in (each.generation.output_token_ids, each.tail))
        facts = len(request.token_ids), each.generation.finish_reason, each.disagreements
        traces.append(Trace(key, *facts, each.log_probs, each.ranks, output, tail))
    return TraceSet.of(traces)


def replayed(offers: Offers, steps: Steps) -> list[list[tuple[Any, ...]]]:
    """What each request's rounds were: choice, nodes, accepted before the cut, rows in the batch."""
    found: list[list[tuple[Any, ...]]] = [[] for _ in offers.traces.traces]
    places, rows = np.repeat(steps.place, steps.rows), np.repeat(steps.rows, steps.rows)
    for request, place, accepted, many in zip(steps.request, places, steps.accepted, rows, strict=True):
        choice = Choice("autoregressive", 0) if place == PLAIN else offers.candidates.all[place]
        found[request].append((choice.kind, choice.nodes, int(accepted), int(many)))
    return found


def lived(out: list[Generation]) -> list[list[tuple[Any, ...]]]:
    return [[(each.choice, each.chosen_nodes, each.accepted_raw, each.in_flight) for each in one.rounds] for one in out]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_replay_decides_the_same(toys: SimpleNamespace, temperature: float) -> None:
    """Round by round and integer for integer, in double precision, where no draw hangs on the last digit of a logit."""
    pair = toys.pair(dtype=torch.float64)
    requests = toys.requests(8, [1, 24, 3, 17, 2, 20, 8, 12], sampling=Sampling(temperature, seed=2))
    offers = Offers.of(recorded(pair, requests), CANDIDATES)
    seen = set()
    for batch_size, costs, policy in (
        (1, Costs(), POLICIES[1]),
        (3, Costs(draft=3.0), POLICIES[1]),
        (4, Costs(token=0.4), POLICIES[2]),
        (3, Costs(), POLICIES[0]),
    ):
        out = decode(pair, TREE, requests, batch_size, adaptive=Adaptive(policy, CANDIDATES, costs))
        steps = replay_policy(offers, policy, costs, batch_size)
        assert lived(out) == replayed(offers, steps)
        seen |= {each.choice for one in out for each in one.rounds}
        outcome = steps.outcome(offers)
        assert outcome.accepted.tolist() == [sum(each.accepted for each in one.rounds) for one in out]
        assert outcome.drafted.tolist() == [sum(each.drafted for each in one.rounds) for one in out]
    assert seen == {"tree", "chain", "autoregressive"}


def test_a_drafter_that_missed_tokens_is_found(toys: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the drafter's cache is not told of autoregressive steps. The text stays right, the replay differs."""
    pair = toys.pair(dtype=torch.float64)
    requests = toys.requests(4, 24)
    offers = Offers.of(recorded(pair, requests), CANDIDATES)
    steps = replay_policy(offers, Coin(), Costs(), 2)

    def forget(loop: AdaptiveLoop) -> None:
        loop._late, loop._since = [], None

    monkeypatch.setattr(AdaptiveLoop, "_catch_up", forget)
    out = decode(pair, TREE, requests, 2, adaptive=Adaptive(Coin(), CANDIDATES, Costs()))
    assert [each.output_token_ids for each in out] == [toys.reference(pair.target, each) for each in requests]
    assert lived(out) != replayed(offers, steps)


@pytest.mark.parametrize(
    ("strategy", "candidates", "match"),
    [
        (Strategy("dflash"), CANDIDATES, "dflash is not a ddtree"),
        (Strategy("ddtree", nodes=NODES, width=2), CANDIDATES, "strategy.width=2: null under a policy"),
        (Strategy("ddtree", nodes=NODES, min_log_prob=-1.0), CANDIDATES, "strategy.min_log_prob"),
        (Strategy("ddtree", nodes=NODES, force_spine=True), CANDIDATES, "strategy.force_spine=True: false"),
        (Strategy("ddtree", nodes=8), CANDIDATES, "candidates.nodes=24: at most the strategy's own 8"),
        (Strategy("ddtree", nodes=NODES, depth=3), CANDIDATES, "candidates.depth=7"),
    ],
)
def test_what_no_policy_can_choose_from(
    pair: ModelPair, toys: SimpleNamespace, strategy: Strategy, candidates: Candidates, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        decode(pair, strategy, toys.requests(1, 4), 1, adaptive=Adaptive(CostOptimal(), candidates, Costs()))
