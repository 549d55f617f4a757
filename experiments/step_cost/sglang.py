"""Step costs of SGLang at the dimensions of Qwen3-8B with random weights, by the engines of its evidence.

With random weights nothing is accepted but by chance, so that every event of a stream is a round: the acceptance is
pinned at 0. The tokens that a round keeps decide only how many rows of the cache are moved.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddbench.cost import Point
from ddbench.errors import ConfigError
from ddbench.plugins.sglang.options import ATTENTION
from experiments.evidence.dummy_models import write_dummy_pair
from experiments.evidence.exclusive import alone
from experiments.evidence.shards import version_of
from experiments.settings import Settings
from experiments.sglang_evidence.arms import Arm, Pair
from experiments.sglang_evidence.fleet import START_S, Fleet
from experiments.sglang_evidence.inside import DUMP
from experiments.sglang_evidence.timing import FIRST, round_ms
from experiments.step_cost.fingerprint import ATTENTION as OWN
from experiments.step_cost.fingerprint import served
from experiments.step_cost.fleets import check_dummy, groups, measure_groups, name_of
from experiments.step_cost.grid import Step, grid
from experiments.step_cost.measured import Measured, Points
from experiments.step_cost.settings import StepCostSettings
from runners.base import EngineFailure

FLAGS = {  # of `experiments.sglang_evidence.arms.arguments`, as a sweep's arms name them
    "attention_backend": "triton",
    "page_size": 1,
    "cuda_graphs": True,
    "overlap": True,
    "tensor_parallel": 1,
    "kv_cache_dtype": "auto",
    "quantization": None,
    "extra_args": [],
}
DTYPE = "bfloat16"
PARTS = {  # stage of a round by what is timed in the worker; the tree is built inside the drafter's graph
    "draft": ("draft", "extend_drafter_cache"),
    "build": ("prepare",),
    "verify": ("verify",),
    "commit": ("walk", "move_kv"),
}


def measure(settings: Settings, asked: StepCostSettings, save: Callable[[Measured], None], folder: Path) -> Measured:
    """Starts one engine a kind and verify width side by side, then times the grid in turns.

    Raises:
        ConfigError: another model than the one that there are random weights of, or flags that are not measured.
    """
    began = time.perf_counter()
    check_dummy(settings.model)
    _check_flags(settings)
    steps = grid(settings, asked)
    rounds = [step for step in steps if step.kind != "prefill"]
    python = settings.engine.python or sys.executable
    logs, models = folder / "logs", folder / "models"
    arms = _arms(rounds, asked.stages, logs)
    pair = _pair(models, rounds, asked)
    write_dummy_pair(models)
    limit = asked.limit_s or float("inf")
    batches = sorted({step.batch for step in rounds})
    setup = _fingerprint(settings, python)
    with (
        alone(min(limit, START_S)),
        Fleet(python, pair, arms, batches, logs, start_s=min(limit, START_S)) as fleet,
    ):
        source = {
            "how": "measured",
            "accepted": "pinned at 0: the weights are random",
            "weights": "random",
            "clock": "median time between two events of a stream while the whole batch decodes",
            "failed": "; ".join(f"{name}: {why.splitlines()[0]}" for name, why in fleet.failed.items()) or "none",
            "pool_tokens": pair.tokens,
        }

        def saved(points: Points) -> Measured:
            found = Measured(setup, points, source)
            save(found)
            return found

        def once(name: str, step: Step) -> float:
            if name not in fleet.engines:
                raise EngineFailure(f"{name}: not up")
            return _once(fleet, name, step, asked.steps, settings.model.target.vocab_size, settings.seed)

        prefills = [step for step in steps if step.kind == "prefill"]
        plan = groups(rounds, batches)
        points = measure_groups(plan, prefills, list(fleet.engines), once, asked, began + limit, saved)
    return Measured(setup, _with_stages(points, logs, asked), source)


def _check_flags(settings: Settings) -> None:
    engine = settings.engine
    for name, value in FLAGS.items():
        given = engine.flags.get(name)
        if (list(given) if isinstance(given, tuple) else given) != value:
            raise ConfigError(f"engine.flags.{name}", engine.flags.get(name), f"{value}: what is measured here")
    if engine.url is not None:
        raise ConfigError("engine.url", engine.url, "null: engines of random weights are started")
    if engine.dtype != DTYPE:
        raise ConfigError("engine.dtype", engine.dtype, f"{DTYPE}: what is measured here")


def _arms(rounds: list[Step], stages: bool, logs: Path) -> list[Arm]:
    """An engine for each kind and verify width; trees with events around the parts of a round where asked for."""
    found: dict[str, Arm] = {}
    for step in rounds:
        name = name_of(step)
        arm = Arm(name, step.kind, None if step.kind == "autoregressive" else step.verify_width - 1)
        if step.kind == "ddtree":
            arm = replace(arm, env={ATTENTION: OWN})
            if stages:
                arm = replace(arm, hooks=("stages",), env={**arm.env, DUMP: str(_dump(logs, name))})
        found[name] = arm
    return list(found.values())


def _dump(logs: Path, name: str) -> Path:
    return (logs / f"{name}_stages.json").resolve()


def _pair(models: Path, rounds: list[Step], asked: StepCostSettings) -> Pair:
    """A pool in which every step fits: prompts, what they emit, and two windows under way."""
    grown = FIRST + asked.steps + 4

    def room(step: Step) -> int:
        return step.batch * (step.context + grown + 2 * max(step.verify_width, 16))

    longest = max(step.context for step in rounds) + grown + 2 * max(step.verify_width for step in rounds)
    tokens = 1024 * (1 + max(map(room, rounds)) // 1024)
    context = 1024 * (1 + longest // 1024)
    return Pair(models / "target", models / "dflash", models / "eagle3", DTYPE, True, context, tokens, 0.9)


def _once(fleet: Fleet, name: str, step: Step, steps: int, vocabulary: int, seed: int) -> float:
    engine = fleet.engines[name]
    try:
        if step.kind == "prefill":
            prompts = random_prompts(1, step.verify_width, vocabulary, seed)
            params = {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": True}
            answer = engine.ask(prompts=prompts, params=params, in_flight=1)
            return 1000 * float(answer["seconds"])
        return round_ms(engine, random_prompts(step.batch, step.context, vocabulary, seed), steps)
    except EngineFailure as failure:
        if "never ran all" not in str(failure):
            fleet.lose(engine, failure)
        raise


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    draws = random.Random(seed)
    return [[draws.randrange(1000, vocabulary - 1000) for _ in range(length)] for _ in range(count)]


def _fingerprint(settings: Settings, python: str) -> dict[str, str]:
    version, torch = (version_of(python, name) for name in ("sglang", "torch"))
    return served("sglang", version, torch, settings.model, {"dtype": DTYPE, **FLAGS})


def _with_stages(points: Points, logs: Path, asked: StepCostSettings) -> Points:
    """The parts of a tree's rounds, as the engines wrote them down: medians over all rounds of a batch size."""
    if not asked.stages:
        return points
    trees = [_staged(point, _dump(logs, f"ddtree_{point.verify_width}"), asked) for point in points.get("ddtree", [])]
    return {**points, "ddtree": trees} if trees else points


def _staged(point: Point, dump: Path, asked: StepCostSettings) -> Point:
    parts: dict[str, Any] = json.loads(dump.read_text()).get(str(point.batch), {}) if dump.exists() else {}
    several = len(asked.context) > 1 and point.context > 1.3 * asked.context[0]  # the dump does not tell contexts apart
    if not parts or several:
        return point
    stages = {stage: round(sum(parts.get(name, 0.0) for name in names), 5) for stage, names in PARTS.items()}
    return replace(point, stages=stages)
