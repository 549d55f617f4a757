"""The same comparison decoded: fixed arms and policies on the reference engine, in turns, held against the replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ddbench.adaptive import Adaptive, Candidates, MeasuredCosts, policy_of
from ddbench.cost import CostModel
from ddbench.decoding import Generation, ModelPair, Request, Strategy, decode
from ddbench.replay import PLAIN, Offers, Steps, Trace, TraceSet, replay_policy
from experiments.adaptive.arms import check_setup
from experiments.adaptive.settings import Comparison, LiveSettings
from experiments.evidence.timing import interleaved
from experiments.progress import duration, say
from experiments.record.prompts import gather
from experiments.record.recorders import ReferenceRecorder, requests_of
from experiments.step_cost.reference import CLOCKS
from runners.machine import machine_facts


@dataclass(frozen=True)
class LiveArm:
    name: str
    strategy: Strategy
    policy: str | None = None


def live(asked: Comparison, candidates: Candidates, traces: Mapping[float, Sequence[Trace]]) -> dict[str, Any]:
    """Decodes some of the recorded prompts with every arm at every batch size; see :class:`LiveSettings`.

    Seconds are those of decoding whole answers, prompts read included, by the clock that the cost file's times are of.

    Raises:
        ConfigError: the cost file is another setup's.
    """
    settings, told, cost = asked.replayed.settings, asked.adaptive.live, asked.cost
    source = gather(settings, asked.replayed.folder.path)
    engine = ReferenceRecorder(source.spec).engine
    facts = {**machine_facts(), "engine_gpu": engine.gpu}
    check_setup(cost, settings, source.facts.engine_version, facts)
    temperature = min(traces)
    recorded = {(each.key.prompt_id, each.key.turn): each for each in traces[temperature] if each.key.repeat == 0}
    places = np.linspace(0, len(engine.prompts) - 1, min(told.prompts, len(engine.prompts))).round().astype(int)
    chosen = [engine.prompts[place] for place in places]
    requests = requests_of(settings, engine.stop_ids, [("", item, 0, temperature) for item in chosen])
    offers = Offers.of(TraceSet.of(recorded[each.prompt_id, each.turn] for each in requests), candidates)
    clock = CLOCKS[cost.fingerprint.get("clock", "wall")]
    points = [_at(engine.pair, requests, offers, size, told, asked, clock) for size in told.batch_size]
    return {
        "clock": cost.fingerprint.get("clock", "wall"),
        "prompts": len(requests),
        "output_tokens": sum(len(each.output) for each in offers.traces.traces),
        "temperature": temperature,
        "turns": told.turns,
        "points": points,
    }


def _at(
    pair: ModelPair,
    requests: Sequence[Request],
    offers: Offers,
    size: int,
    told: LiveSettings,
    asked: Comparison,
    clock: Callable[[], float],
) -> dict[str, Any]:
    """One batch size: median speed of every arm over the turns, and whether a policy's steps are the replay's."""
    candidates, depth = offers.candidates, offers.traces.depth
    arms = _arms(candidates, told, asked.adaptive.policies, depth)
    adaptive = {
        name: Adaptive(policy_of(name), candidates, MeasuredCosts(asked.cost)) for name in asked.adaptive.policies
    }
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    last: dict[str, list[Generation]] = {}
    for place in interleaved([str(index) for index in range(len(arms))], told.turns):
        for index in place:
            arm = arms[int(index)]
            begin = clock()
            policy = None if arm.policy is None else adaptive[arm.policy]
            last[arm.name] = decode(pair, arm.strategy, requests, size, clock=clock, adaptive=policy)
            seconds[arm.name].append(clock() - begin)
    tokens = sum(len(each.output_token_ids) - 1 for each in last["autoregressive"])
    speeds = {name: tokens / median(values) for name, values in seconds.items()}
    single = [arm.name for arm in arms if arm.policy is None]
    best = max(single, key=speeds.__getitem__)
    texts = [each.output_token_ids for each in last["autoregressive"]]
    rows = [
        {
            "arm": arm.name,
            "policy": arm.policy,
            "tokens_per_s": speeds[arm.name],
            "spread": (max(seconds[arm.name]) - min(seconds[arm.name])) / median(seconds[arm.name]),
            "same_text": sum(a == b.output_token_ids for a, b in zip(texts, last[arm.name], strict=True)),
            "ratio": speeds[arm.name] / speeds[best],
            "as_replayed": None if arm.policy is None else _equal(last[arm.name], offers, arm.policy, asked.cost, size),
        }
        for arm in arms
    ]
    mine = ", ".join(f"{row['arm']} {row['ratio']:.3f}" for row in rows if row["policy"] is not None)
    say(f"live, batch {size}: best single arm {best}; {mine} of it, in {duration(sum(map(sum, seconds.values())))}")
    return {"batch_size": size, "best": best, "requests": len(requests), "arms": rows}


def _arms(candidates: Candidates, told: LiveSettings, policies: Sequence[str], depth: int) -> list[LiveArm]:
    trees = [LiveArm(f"tree {nodes}", Strategy("ddtree", nodes=nodes)) for nodes in told.nodes]
    chains = [LiveArm(f"chain {deep}", Strategy("dflash", depth=deep)) for deep in candidates.chains]
    most = Strategy("ddtree", depth=depth, nodes=candidates.most)
    return [
        LiveArm("autoregressive", Strategy("autoregressive")),
        *chains,
        *trees,
        *(LiveArm(name, most, name) for name in policies),
    ]


def _equal(out: Sequence[Generation], offers: Offers, policy: str, cost: CostModel, size: int) -> int:
    """Requests whose rounds, choices and accepted tokens are the replay's, every one of them."""
    steps = replay_policy(offers, policy_of(policy), MeasuredCosts(cost), size)
    wanted = rounds_of(offers, steps)
    found = [[(each.choice, each.chosen_nodes, each.accepted_raw) for each in one.rounds] for one in out]
    return sum(a == b for a, b in zip(found, wanted, strict=True))


def rounds_of(offers: Offers, steps: Steps) -> list[list[tuple[str, int, int]]]:
    """What each request's rounds were in a replay: choice, its nodes, and accepted tokens before the cut."""
    found: list[list[tuple[str, int, int]]] = [[] for _ in offers.traces.traces]
    places = np.repeat(steps.place, steps.rows).tolist()
    for request, place, accepted in zip(steps.request.tolist(), places, steps.accepted.tolist(), strict=True):
        choice = None if place == PLAIN else offers.candidates.all[place]
        kind, nodes = ("autoregressive", 0) if choice is None else (choice.kind, choice.nodes)
        found[request].append((kind, nodes, accepted))
    return found
