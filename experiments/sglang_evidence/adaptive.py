"""The adaptive verify width on the tiny pair: against each fixed width of the same server, and the stock arms.

One server of our plug-in has graphs of several verify widths. First each is pinned and its step timed, which makes the
cost file; then the policy starts with it. Contenders then take turns at tokens a second: the policy, every width pinned
(1 is autoregressive decoding inside that server), stock autoregressive decoding and the stock chain. What the policy
took is told by the server.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open

from ddbench.cost.file import save_cost
from ddbench.cost.points import Point
from ddbench.plugins.sglang.options import COSTS, POLICY, WIDTHS
from ddbench.plugins.sglang.setup import TARGET
from experiments.evidence.shards import version_of
from experiments.evidence.timing import interleaved, kept, spread
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.timing import step_ms, tokens_per_s
from experiments.sglang_evidence.tiny_checks import CHAIN, LENGTH, pair_of
from experiments.step_cost.fingerprint import build_of
from runners.base import EngineFailure
from runners.machine import machine_facts

BATCHES = [1, 8, 32]
NARROW, WIDEST = (1, 4, 8, 16, 32), 64  # verify widths; 1 is a step without the drafter
PROMPTS = {1: 8, 8: 32, 32: 64}
COST_REPEATS, COST_TOKENS, REPEATS = 2, 96, 3
SECONDS_LEFT = 20.0
PLAIN, ADAPTIVE = Arm("autoregressive"), Arm("adaptive", "ddtree", WIDEST - 1)

Measured = dict[str, Any]
Steps = dict[int, dict[int, list[float]]]  # milliseconds by verify width and batch size


@dataclass(frozen=True)
class Contender:
    """``width``: pinned on the adaptive server, 0 for the policy; None: another engine."""

    name: str
    engine: str
    width: int | None = None


def measure(job: Job) -> Measured:
    """Costs, then contenders batch size by batch size; saved after each."""
    began = time.perf_counter()
    batches, costs = job.batches or BATCHES, (job.logs / "costs.json").resolve()
    job.logs.mkdir(parents=True, exist_ok=True)
    setup = _setup(job)
    _save(costs, setup, {width: {batch: [1.0] for batch in batches} for width in (*NARROW, WIDEST)}, 1.0, "placeholder")
    env = {POLICY: "cost_optimal", COSTS: str(costs), WIDTHS: ",".join(map(str, NARROW))}
    arms = [each for each in (replace(ADAPTIVE, env=env), PLAIN, CHAIN) if job.arms is None or each.name in job.arms]
    result: Measured = {"widths": [*NARROW, WIDEST], "policy": env[POLICY], "skipped": [], "tokens_per_s": {}}
    with Fleet(job.python, pair_of(job.assets, "bfloat16"), arms, batches, job.logs, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        job.save(result)
        engine = fleet.engines.get(ADAPTIVE.name)
        if engine is None:
            return result
        result["step_ms"] = steps = _steps(engine, job.prompts, batches)
        context = sum(map(len, job.prompts)) / len(job.prompts) + COST_TOKENS / 2
        _save(costs, setup, steps, context, "measured on the server that is to use it")
        engine.ask(verb="state", values={"ddtree_policy": 1})
        job.save(result)
        for batch in batches:
            if job.limit_s - (time.perf_counter() - began) < SECONDS_LEFT:
                result["skipped"].append(batch)
                continue
            _batch(fleet, job.prompts[: PROMPTS.get(batch, 2 * batch)], batch, result)
            job.save(result)
    return result


def _setup(job: Job) -> dict[str, str]:
    """What the server says of itself (`ddbench.plugins.sglang.setup`)."""
    gpus = machine_facts()["gpus"]
    versions = {name: str(version_of(job.python, name)).partition("+")[0] for name in ("sglang", "torch")}
    return {
        "engine": "sglang",
        "engine_version": f"sglang {versions['sglang']} torch {versions['torch']}",
        "device": gpus[0]["name"] if gpus else "cpu",
        "dtype": "bfloat16",
        "build": str(build_of("sglang")),
        "attention_backend": "triton",
        "verify_attention": "own",
        "target": _target(pair_of(job.assets, "bfloat16").target),
    }


def _target(folder: Path) -> str:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with safe_open(folder / "model.safetensors", "pt") as weights:
        count = sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    names = {"layers": "num_hidden_layers", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
    sizes = {name: int(config[key]) for name, key in (names | {"vocab_size": "vocab_size"}).items()}
    return f"{count} parameters, {TARGET.format(**sizes)}"


def _save(path: Path, setup: Mapping[str, str], steps: Steps, context: float, how: str) -> None:
    """Writes the cost file of these times."""
    points: dict[str, list[Point]] = {"autoregressive": [], "ddtree": []}
    for width, by_batch in steps.items():
        for batch, values in by_batch.items():
            told = spread(values)
            point = Point(width, batch, context, told["median"], told["low"], told["high"], len(values))
            points["autoregressive" if width == 1 else "ddtree"].append(point)
    save_cost(path, setup, points, {"how": how})


def _steps(engine: Engine, prompts: list[list[int]], batches: Sequence[int]) -> Steps:
    """Milliseconds a step by pinned width and batch size, widths interleaved."""
    found: Steps = {width: {} for width in (*NARROW, WIDEST)}
    for batch in batches:
        for order in interleaved([str(width) for width in found], COST_REPEATS):
            for width in map(int, order):
                engine.ask(verb="state", values={"ddtree_verify": width})
                found[width].setdefault(batch, []).append(step_ms(engine, prompts[:batch], COST_TOKENS))
        say(f"batch {batch}: ms a step { ({width: round(min(by[batch]), 3) for width, by in found.items()}) }")
    return found


def _batch(fleet: Fleet, prompts: list[list[int]], batch: int, result: Measured) -> None:
    contenders = [Contender("policy", ADAPTIVE.name, 0)]
    contenders += [Contender(f"width_{width}", ADAPTIVE.name, width) for width in (*NARROW, WIDEST)]
    contenders += [Contender(name, name) for name in (PLAIN.name, CHAIN.name) if name in fleet.engines]
    known, values, texts = {each.name: each for each in contenders}, dict[str, list[float]](), dict[str, Any]()
    fleet.engines[ADAPTIVE.name].ask(verb="state", values={"ddtree_policy": 1})  # it learns each batch size anew
    before = _rounds(fleet.engines[ADAPTIVE.name])
    for turn, order in enumerate(interleaved(list(known), REPEATS + 1)):  # the first turn warms up
        for name in order:
            try:
                value, texts[name] = _speed(fleet.engines[known[name].engine], known[name], prompts, batch)
            except EngineFailure as failure:
                result["failed"][f"{name} at {batch}"] = str(failure)[:500]
                return
            if turn:
                values.setdefault(name, []).append(value)
    result["tokens_per_s"][batch] = {name: kept(found) for name, found in values.items()}
    medians = {name: spread(found)["median"] for name, found in values.items()}
    best = max((name for name in medians if name != "policy"), key=lambda name: medians[name])
    result.setdefault("best_fixed", {})[batch] = best
    result.setdefault("policy_vs_best_fixed", {})[batch] = round(medians["policy"] / medians[best], 4)
    result.setdefault("rounds_by_width", {})[batch] = _since(before, _rounds(fleet.engines[ADAPTIVE.name]))
    plain = texts.get(PLAIN.name)
    if plain is not None:
        shares = {name: _share(found, plain) for name, found in texts.items() if name != PLAIN.name}
        result.setdefault("share_of_stock_autoregressive_texts", {})[batch] = shares
    say(f"batch {batch}: policy {medians['policy']:.0f} tokens/s, {best} {medians[best]:.0f}; {medians}")


def _speed(engine: Engine, contender: Contender, prompts: list[list[int]], batch: int) -> tuple[float, Any]:
    if contender.width is not None:
        engine.ask(verb="state", values={"ddtree_verify": contender.width})
    value, answer = tokens_per_s(engine, prompts, batch, LENGTH)
    return value, answer["tokens"]


def _rounds(engine: Engine) -> dict[str, int]:
    """Rounds so far by verify width, of all contenders on that server."""
    state = engine.ask(verb="info")["info"]["internal_states"][0]["ddtree"]
    return dict((state.get("adaptive") or {}).get("rounds_of_policy") or {})


def _since(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {width: count - before.get(width, 0) for width, count in after.items() if count > before.get(width, 0)}


def _share(found: Sequence[Sequence[int]], plain: Sequence[Sequence[int]]) -> float:
    return round(sum(list(a) == list(b) for a, b in zip(found, plain, strict=True)) / len(plain), 4)
