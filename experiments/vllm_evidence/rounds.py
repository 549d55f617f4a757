"""Round times at the dimensions of Qwen3-8B with random weights: what a round costs, whatever is accepted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ddbench.plugins.vllm.memory import Layers, kv_tokens
from experiments.evidence.dummy_models import (
    DRAFT_LAYERS,
    HEAD,
    KV_HEADS,
    LAYERS,
    drafter_parameters,
    target_parameters,
)
from experiments.evidence.timing import interleaved, repeats_for, spread
from experiments.vllm_evidence.arms import Arm, Pair
from experiments.vllm_evidence.fleet import Engine, Fleet
from experiments.vllm_evidence.timing import round_ms

BATCHES = [1, 4, 8, 16, 32]
LARGE = [64]  # a shard of its own: it needs a larger cache, and takes as long as all others
MIDDLE_BATCHES = (1, 8, 32)  # of verify width 32
PROMPT_TOKENS = 256
VOCABULARY = 151_936
BLOCK_SIZE = 16  # of the KV cache: vLLM's own default

# Two groups, for memory. Within one, arms take turns on the same GPU; each tree has the chain of its own width in it.
NARROW = (
    Arm("autoregressive"),
    Arm("dflash_16", 15),
    Arm("ddtree_16", 15, {}),
    Arm("autoregressive_stock", stock=True),
    Arm("dflash_16_stock", 15, stock=True),
)
WIDE = (Arm("dflash_32", 31), Arm("ddtree_32", 31, {}), Arm("dflash_64", 63), Arm("ddtree_64", 63, {}))
GROUPS = {"narrow": NARROW, "wide": WIDE}
PROFILED = (Arm("dflash_16", 15, in_process=True), Arm("ddtree_16", 15, {}, in_process=True))
Save = Callable[[dict[str, Any]], None]


def pair_of(models: Path, most: int = 32) -> Pair:
    """Configurations of the dimensions of Qwen3-8B and its DFlash drafter, see `dummy_models`.

    ``most`` sequences, each with its prompt, what it emits and two verify windows of 64, fit into the cache.
    """
    return Pair(models / "target", models / "dflash", "bfloat16", True, 1024, 4.0 if most <= 32 else 5.0, 0.15)


def measure(python: str, models: Path, logs: Path, gpus: int, batches: list[int], save: Save) -> dict[str, Any]:
    """Milliseconds a round by arm and batch size: median and range of interleaved repeats.

    With two GPUs the groups start side by side; nothing is ever timed while something else runs. ``save`` gets the
    result so far after every batch size.
    """
    result: dict[str, Any] = {"prompt_tokens": PROMPT_TOKENS, "timed": "engine steps", "round_ms": {}, "failed": {}}
    rng = random.Random(0)
    prompts = [[rng.randrange(1000, VOCABULARY - 1000) for _ in range(PROMPT_TOKENS)] for _ in range(max(batches))]
    pair = pair_of(models, max(batches))
    stages = [list(GROUPS)] if gpus >= len(GROUPS) else [[name] for name in GROUPS]
    for stage in stages:
        with ExitStack() as stack:
            arms = [arm for name in stage for arm in GROUPS[name]]
            places = [gpu for gpu, name in enumerate(stage) for _ in GROUPS[name]]
            fleet = stack.enter_context(Fleet(python, pair, arms, places, batches, logs))
            result["failed"] |= fleet.failed
            result.setdefault("start_s", []).append(round(fleet.start_s, 1))
            result.setdefault("memory", {}).update(
                {name: memory(engine, pair) for name, engine in fleet.engines.items()}
            )
            for batch in batches:
                for group in stage:
                    engines = {
                        arm.name: fleet.engines[arm.name]
                        for arm in GROUPS[group]
                        if arm.name in fleet.engines and (arm.nodes != 31 or batch in MIDDLE_BATCHES)
                    }
                    _group(engines, prompts[:batch], result, batch)
                save(result)
    return result


def profile(python: str, models: Path, logs: Path) -> dict[str, Any]:
    """Where the host's time goes at batch size 1: Python's profiler over the engine's process, chain and tree."""
    prompts = [[1000 + i for i in range(PROMPT_TOKENS)]]
    params = {"temperature": 0.0, "max_tokens": 150, "ignore_eos": True}
    with Fleet(python, pair_of(models), PROFILED, [0] * len(PROFILED), [1], logs) as fleet:
        found: dict[str, Any] = {"failed": fleet.failed}
        for name, engine in fleet.engines.items():
            round_ms(engine, prompts)
            found[name] = {"round_ms": round(round_ms(engine, prompts), 3)}
            found[name]["profile"] = engine.ask(prompts=prompts, params=params, in_flight=1, profile=True)["profile"]
    return found


def memory(engine: Engine, pair: Pair) -> dict[str, float | int | None]:
    """GiB of weights and tokens of the cache: predicted beforehand, and as the engine said."""
    drafts = engine.arm.nodes is not None
    parameters = target_parameters() + (drafter_parameters() if drafts else 0)
    cache = int(pair.kv_gib * 2**30)
    drafter = Layers(DRAFT_LAYERS, KV_HEADS, HEAD) if drafts else None
    return {
        "weights_predicted_gib": round(2 * parameters / 2**30, 3),
        "weights_measured_gib": engine.loaded_gib,
        "kv_tokens_predicted": kv_tokens(cache, BLOCK_SIZE, Layers(LAYERS, KV_HEADS, HEAD), drafter),
        "kv_tokens_measured": engine.facts["kv_tokens"],
    }


def _group(engines: dict[str, Engine], prompts: list[list[int]], result: dict[str, Any], batch: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in engines}
    clock = time.perf_counter()
    for engine in engines.values():  # not counted: warms up, and says how long a turn takes
        round_ms(engine, prompts)
    for order in interleaved(list(engines), repeats_for(time.perf_counter() - clock)):
        for name in order:
            times[name].append(round_ms(engines[name], prompts))
    rows = result["round_ms"].setdefault(batch, {})
    rows |= {name: spread(values) for name, values in times.items()}
    ratios = result.setdefault("round_ratio_vs_dflash", {}).setdefault(batch, {})
    for name in engines:
        chain = name.replace("ddtree", "dflash")
        if name.startswith("ddtree") and chain in times:
            ratios[name] = spread([a / b for a, b in zip(times[name], times[chain], strict=True)])
