"""Round times at the dimensions of Qwen3-8B with random weights: what a round costs, whatever is accepted.

A group of arms shares a GPU and takes turns on it; each tree has the chain and the EAGLE tree of its verify width
beside it. An even ``restart`` starts and asks them in the opposite order.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.plugins.sglang.options import ATTENTION
from experiments.evidence.dummy_models import write_dummy_pair
from experiments.evidence.timing import kept
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm, Pair
from experiments.sglang_evidence.fleet import Fleet
from experiments.sglang_evidence.inside import DUMP
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.memory import told, watched
from experiments.sglang_evidence.timing import round_ms
from experiments.sglang_evidence.turns import ratios, take_turns
from runners.base import EngineFailure

BATCHES = [1, 8, 32]  # the first to be measured
MORE_BATCHES = [*BATCHES, 2, 4, 16, 64]
REPEATS = 5
PROMPT_TOKENS, CONTEXT = 256, 1024
VOCABULARY = 151_936
SECONDS_LEFT = 25.0  # without as many left before the limit, a batch size is not begun
STOCK = "_sglang_attention"
STEPS, TOP_K = 7, 4  # of the EAGLE trees: the usual setting; wider verify passes need a wider beam


def trio(width: int, backend: str = "triton") -> list[Arm]:
    """Chain, tree and EAGLE tree of one verify width.

    The chain's drafter drafts a block as long as that, the tree's one of 16: beyond a width of 16 the tree's drafter
    has less to do, and a ratio of the two rounds flatters the tree.
    """
    suffix = f"{width}" if backend == "triton" else f"{width}_{backend}"
    top_k = TOP_K if width <= 64 else 8
    return [
        Arm(f"dflash_{suffix}", "dflash", width - 1, block=width, backend=backend),
        Arm(f"ddtree_{suffix}", "ddtree", width - 1, backend=backend),
        Arm(f"eagle_{suffix}", "eagle", width - 1, width=top_k, depth=STEPS, backend=backend),
    ]


def stock_attention(width: int) -> Arm:
    """The tree with SGLang's own attention in its verify pass, in the place of the plug-in's."""
    name = f"ddtree_{width}{STOCK}"
    return Arm(name, "ddtree", width - 1, env={ATTENTION: "sglang"})


def chain_of(name: str) -> str:
    """The chain that an arm's rounds are set against; its own name for the others."""
    return name.removesuffix(STOCK).replace("ddtree", "dflash").replace("eagle", "dflash")


GROUPS: dict[str, list[Arm]] = {
    "rounds_16": [Arm("autoregressive"), *trio(16), stock_attention(16)],
    "rounds_32": trio(32),
    "rounds_64": [*trio(64), stock_attention(64)],  # a fifth engine of this width finds no memory on 141 GB
    "rounds_128": trio(128),
    "rounds_flashinfer_16": trio(16, "flashinfer"),
    "rounds_flashinfer_64": trio(64, "flashinfer"),
}


def pair_of(models: Path, widest: int, most: int) -> Pair:
    """``most`` sequences, each with its prompt, what it emits and two verify windows, fit into the pool."""
    tokens = 1024 * (1 + most * (PROMPT_TOKENS + 128 + 2 * widest) // 1024)
    return Pair(models / "target", models / "dflash", models / "eagle3", "bfloat16", True, CONTEXT, tokens, memory=0.9)


def measure(job: Job) -> dict[str, Any]:
    """Milliseconds a round by arm and batch size: median and spread of interleaved repeats; saved after each size."""
    arms = [arm for arm in GROUPS[job.shard] if job.arms is None or arm.name in job.arms]
    if not arms:
        raise ConfigError("arms", job.arms, f"some of {', '.join(arm.name for arm in GROUPS[job.shard])}")
    began = time.perf_counter()
    arms = watched(arms if job.restart % 2 else arms[::-1], job.logs)
    batches = job.batches or (MORE_BATCHES if job.shard in ("rounds_16", "rounds_64") else BATCHES)
    models = job.logs.parent / "dummy_models"
    write_dummy_pair(models)
    pair = pair_of(models, max(arm.verify_width for arm in arms), max(batches))
    prompts = random_prompts(max(batches))
    result: dict[str, Any] = {"prompt_tokens": PROMPT_TOKENS, "restart": job.restart, "round_ms": {}, "skipped": []}
    result["asked"] = [arm.name for arm in arms]
    with Fleet(job.python, pair, arms, batches, job.logs, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed, "pool_tokens": pair.tokens}
        result["started"] = {name: engine.facts for name, engine in fleet.engines.items()}
        _drop_misnamed(fleet)
        result["memory"] = {
            arm.name: told(arm, pair, batches, str(fleet.engines[arm.name].facts["sglang"]), job.logs)
            for arm in arms
            if arm.strategy == "ddtree" and arm.name in fleet.engines
        }
        job.save(result)
        for batch in batches:
            if job.limit_s - (time.perf_counter() - began) < SECONDS_LEFT:
                result["skipped"].append(batch)
                continue
            names = [arm.name for arm in arms if arm.name in fleet.engines]
            values = take_turns(fleet, names, partial(round_ms, prompts=prompts[:batch]), REPEATS)
            rows = {name: kept(times) for name, times in values.items()}
            result["round_ms"][batch] = rows
            found = result.setdefault("round_ratio_vs_dflash", {}).setdefault(batch, {})
            for name in values:
                chain = chain_of(name)
                if chain != name and chain in values:
                    found[name] = kept(ratios(values, name, chain))
            line = "  ".join(f"{name} {row['median']:.3f}" for name, row in rows.items())
            medians = {name: each["median"] for name, each in found.items()}
            say(f"batch {batch:3d}: {line} ms; of the chain's {medians}")
            job.save(result)
    return result


def _drop_misnamed(fleet: Fleet) -> None:
    """Ends the trees that verify with another attention than their arm is named for."""
    for name, engine in list(fleet.engines.items()):
        ran = engine.facts.get("verify_attention")
        named = "sglang" if name.endswith(STOCK) or engine.arm.backend != "triton" else "own"
        if engine.arm.strategy == "ddtree" and ran not in (None, named):
            fleet.lose(engine, EngineFailure(f"{name}: its verify pass runs {ran!r} attention, not {named!r}"))


def stages(job: Job) -> dict[str, Any]:
    """Where a round's time goes on the device: events around its parts, for trees of verify width 16 and 64."""
    models = job.logs.parent / "dummy_models"
    write_dummy_pair(models)
    batches = job.batches or [1, 8, 32]
    job.logs.mkdir(parents=True, exist_ok=True)
    dumps = {width: (job.logs / f"stages_{width}.json").resolve() for width in (16, 64)}
    arms = [replace(trio(width)[1], hooks=("stages",), env={DUMP: str(dump)}) for width, dump in dumps.items()]
    prompts = random_prompts(max(batches))
    result: dict[str, Any] = {"failed": {}, "stages_ms": {}}
    with Fleet(job.python, pair_of(models, 64, max(batches)), arms, batches, job.logs, start_s=job.limit_s) as fleet:
        result["failed"] = fleet.failed
        for batch in batches:
            take_turns(fleet, [arm.name for arm in arms], partial(round_ms, prompts=prompts[:batch]))
    for width, dump in dumps.items():
        if dump.exists():
            result["stages_ms"][width] = json.loads(dump.read_text())
            say(f"verify width {width}: {result['stages_ms'][width]}")
    return result


def random_prompts(count: int) -> list[list[int]]:
    draws = random.Random(0)
    return [[draws.randrange(1000, VOCABULARY - 1000) for _ in range(PROMPT_TOKENS)] for _ in range(count)]
