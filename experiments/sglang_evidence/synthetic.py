"""Tokens a second at the dimensions of Qwen3-8B with the length of every accepted path pinned. Synthetic, and named so.

Weights are random, so nothing would be accepted; SGLang's own SGLANG_SIMULATE_ACC_LEN pins what a round emits. The
lengths are published ones of Qwen3-8B with its DFlash drafter, greedy: chain and 16 nodes from the DominoTree
repository's table (one harness, 50 prompts), 64 nodes from a third-party note on an A100 (another harness).

Random drafters give shallow trees, so the drafter's own chain is forced into them: a pinned path follows it. It already
stands at the front of the window, so moving the cache costs less than for real paths; see the kernels' times for that.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from experiments.evidence.dummy_models import write_dummy_pair
from experiments.evidence.timing import kept
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.counts import acceptance_length
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.rounds import pair_of, random_prompts
from experiments.sglang_evidence.timing import tokens_per_s
from experiments.sglang_evidence.turns import ratios, take_turns

LENGTHS = {"dflash": 6.12, "ddtree_16_nodes": 6.91, "ddtree_64_nodes": 7.48}
BATCHES = [1, 4, 8, 16, 32]
OUTPUT, REPEATS, SECONDS_LEFT = 128, 5, 25.0


def pinned(length: float) -> dict[str, str]:
    return {
        "SGLANG_SIMULATE_ACC_LEN": str(length),
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "DDTREE_FORCE_SPINE": "1",
    }


ARMS = (
    Arm("autoregressive"),
    Arm("dflash", "dflash", 15, env=pinned(LENGTHS["dflash"])),
    Arm("ddtree_16_nodes", "ddtree", 16, env=pinned(LENGTHS["ddtree_16_nodes"])),
    Arm("ddtree_64_nodes", "ddtree", 64, env=pinned(LENGTHS["ddtree_64_nodes"])),
)


def measure(job: Job) -> dict[str, Any]:
    """A closed loop at each batch size; ratios to the chain, and the batch sizes at which a tree no longer wins."""
    began = time.perf_counter()
    models = job.logs.parent / "dummy_models"
    write_dummy_pair(models)
    arms = [arm for arm in ARMS if job.arms is None or arm.name in job.arms]
    batches = job.batches or BATCHES
    prompts = random_prompts(2 * max(batches))
    result: dict[str, Any] = {"synthetic": True, "pinned_length": LENGTHS, "tokens_per_s": {}, "skipped": []}
    result["asked"] = [arm.name for arm in arms]
    with Fleet(job.python, pair_of(models, 65, max(batches)), arms, batches, job.logs, start_s=job.limit_s) as fleet:
        result |= {
            "start_s": round(fleet.start_s, 1),
            "failed": fleet.failed,
            "ratio_vs_dflash": {},
            "acceptance_length": {},
        }
        for batch in batches:
            if job.limit_s - (time.perf_counter() - began) < SECONDS_LEFT:
                result["skipped"].append(batch)
                continue
            lengths = result["acceptance_length"].setdefault(batch, {})
            speed = partial(_speed, prompts=prompts[: 2 * batch], in_flight=batch, lengths=lengths)
            values = take_turns(fleet, list(fleet.engines), speed, REPEATS)
            result["tokens_per_s"][batch] = {name: kept(found) for name, found in values.items()}
            found = {name: ratios(values, name, "dflash") for name in values if "dflash" in values and name != "dflash"}
            result["ratio_vs_dflash"][batch] = {name: kept(each) for name, each in found.items()}
            medians = {name: each["median"] for name, each in result["tokens_per_s"][batch].items()}
            say(f"batch {batch:3d}: {medians} tokens/s at accepted lengths {lengths}")
            job.save(result)
    result["crossover_batch"] = {name: crossover(result["ratio_vs_dflash"], name) for name in LENGTHS}
    return result


def _speed(engine: Engine, prompts: list[list[int]], in_flight: int, lengths: dict[str, float | None]) -> float:
    value, answer = tokens_per_s(engine, prompts, in_flight, OUTPUT)
    lengths[engine.name] = acceptance_length(answer["counts"])
    return value


def crossover(ratio: dict[int, dict[str, Any]], name: str) -> int | None:
    """The smallest batch size at which an arm is not faster than the chain; None where it always is."""
    slower = [batch for batch, arms in ratio.items() if name in arms and arms[name]["median"] <= 1.0]
    return min(slower, default=None)
