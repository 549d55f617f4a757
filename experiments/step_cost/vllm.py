"""Step costs of vLLM at the dimensions of Qwen3-8B with random weights, by the engines of its evidence."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from ddbench.errors import ConfigError
from experiments.evidence.dummy_models import write_dummy_pair
from experiments.evidence.exclusive import alone
from experiments.evidence.shards import version_of
from experiments.settings import Settings
from experiments.step_cost.fingerprint import served
from experiments.step_cost.fleets import check_dummy, groups, measure_groups, name_of
from experiments.step_cost.grid import Step, grid
from experiments.step_cost.measured import Measured, Points
from experiments.step_cost.settings import StepCostSettings
from experiments.step_cost.sglang import random_prompts
from experiments.vllm_evidence.arms import Arm, Pair
from experiments.vllm_evidence.fleet import Fleet
from experiments.vllm_evidence.timing import FIRST, round_ms
from runners.base import EngineFailure

FLAGS = {  # of `experiments.vllm_evidence.arms.arguments`, as a sweep's arms name them
    "attention_backend": "TRITON_ATTN",
    "model_runner": "V1",
    "cuda_graphs": True,
    "async_scheduling": True,
    "tensor_parallel": 1,
    "kv_cache_dtype": "auto",
    "quantization": None,
    "extra_args": [],
}
DTYPE, KV_GIB_A_TOKEN = "bfloat16", 180_224 / 2**30  # of 36 + 5 layers, 8 heads of 128, two bytes, rounded up


def measure(settings: Settings, asked: StepCostSettings, save: Callable[[Measured], None], folder: Path) -> Measured:
    """Starts one engine a kind and verify width side by side, then times the grid in turns.

    Raises:
        ConfigError: another model than the one that there are random weights of, or settings that are not measured.
    """
    began = time.perf_counter()
    check_dummy(settings.model)
    if settings.engine.dtype != DTYPE:
        raise ConfigError("engine.dtype", settings.engine.dtype, f"{DTYPE}: what is measured here")
    extra = list(settings.engine.flags.get("extra_args") or [])
    if extra:
        raise ConfigError("engine.flags.extra_args", extra, "[]: what is measured here")
    steps = grid(settings, asked)
    rounds = [step for step in steps if step.kind != "prefill"]
    prefills = [step for step in steps if step.kind == "prefill"]
    batches = sorted({step.batch for step in rounds})
    arms = list({name_of(step): _arm(step) for step in rounds}.values())
    write_dummy_pair(folder / "models")
    python = settings.engine.python or sys.executable
    setup = vllm_fingerprint(settings, version_of(python, "vllm"), version_of(python, "torch"))
    limit = asked.limit_s or float("inf")
    pair = _pair(folder / "models", rounds, asked, len(arms))
    with alone(min(limit, 600.0)), Fleet(python, pair, arms, [0] * len(arms), batches, folder / "logs") as fleet:
        source = {
            "how": "measured",
            "accepted": "pinned at 0: the weights are random",
            "weights": "random",
            "clock": "median time between two steps of the engine in which every sequence got tokens",
            "failed": "; ".join(f"{name}: {why.splitlines()[0]}" for name, why in fleet.failed.items()) or "none",
        }

        def saved(points: Points) -> Measured:
            found = Measured(setup, points, source)
            save(found)
            return found

        def once(name: str, step: Step) -> float:
            engine = fleet.engines[name]
            length = step.verify_width if step.kind == "prefill" else step.context
            prompts = random_prompts(step.batch, length, settings.model.target.vocab_size, settings.seed)
            if step.kind == "prefill":
                params = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True}
                return 1000 * float(engine.ask(prompts=prompts, params=params, in_flight=1)["seconds"])
            return round_ms(engine, prompts, asked.steps)

        plan = groups(rounds, batches)
        points = measure_groups(plan, prefills, list(fleet.engines), once, asked, began + limit, saved)
    if not points:
        raise EngineFailure(f"no step was timed: {source['failed']}")
    return Measured(setup, points, source)


def _arm(step: Step) -> Arm:
    nodes = None if step.kind == "autoregressive" else step.verify_width - 1
    return Arm(name_of(step), nodes, {} if step.kind == "ddtree" else None)


def _pair(models: Path, rounds: list[Step], asked: StepCostSettings, engines: int) -> Pair:
    """A cache in which every step fits: prompts, what they emit, and two windows under way."""
    grown = FIRST + asked.steps + 32
    tokens = max(step.batch * (step.context + grown + 2 * step.verify_width) for step in rounds)
    longest = max(step.context + grown + 2 * step.verify_width for step in rounds)
    gib = round(tokens * KV_GIB_A_TOKEN + 0.5, 1)
    return Pair(models / "target", models / "dflash", DTYPE, True, 1024 * (1 + longest // 1024), gib, 0.9 / engines)


def vllm_fingerprint(settings: Settings, version: str | None, torch: str | None) -> dict[str, str]:
    """Of the engines of the evidence on this machine."""
    return served("vllm", version, torch, settings.model, {"dtype": DTYPE, **FLAGS})
