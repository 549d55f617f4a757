"""The tiny pair at real acceptance, in bfloat16, which is what is served: tokens a second, and milliseconds a step.

A step is a round of the engine for a batch of sequences that all decode: one token each of the autoregressive arm, one
verified tree each of a speculative one. It is what the other engines' rounds of the same pair are compared with.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from experiments.evidence.timing import kept, spread
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm
from experiments.sglang_evidence.counts import acceptance_length
from experiments.sglang_evidence.fleet import Engine, Fleet
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.timing import step_ms, tokens_per_s
from experiments.sglang_evidence.tiny_checks import pair_of
from experiments.sglang_evidence.turns import ratios, take_turns

BATCHES = [1, 8, 32]
REPEATS = 5
TOKENS = 256  # of each answer: in a short one, its prefill and the step launched after its last weigh much
PROMPTS = {1: 8, 8: 32, 32: 64}
SECONDS_LEFT = 20.0
ARMS = (
    Arm("autoregressive"),
    Arm("dflash", "dflash", 15),
    Arm("ddtree_15", "ddtree", 15),
    Arm("ddtree_31", "ddtree", 31),
    Arm("ddtree_63", "ddtree", 63),
    Arm("eagle_16", "eagle", 15, width=4, depth=7),
)


def measure(job: Job) -> dict[str, Any]:
    """A closed loop at each batch size, arms interleaved; ratios to the chain repeat by repeat; then steps alone."""
    began = time.perf_counter()
    arms = [arm for arm in ARMS if job.arms is None or arm.name in job.arms]
    arms = arms if job.restart % 2 else arms[::-1]
    batches = job.batches or BATCHES
    result: dict[str, Any] = {"restart": job.restart, "tokens_per_s": {}, "ratio_vs_dflash": {}, "skipped": []}
    result |= {"step_ms": {}, "asked": [arm.name for arm in arms]}
    pair = pair_of(job.assets, "bfloat16")
    with Fleet(job.python, pair, arms, batches, job.logs, start_s=job.limit_s, own_core=True) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed, "acceptance_length": {}}
        result["cores"] = fleet.cores()
        for batch in batches:
            if job.limit_s - (time.perf_counter() - began) < SECONDS_LEFT:
                result["skipped"].append(batch)
                continue
            _batch(fleet, job.prompts[: PROMPTS.get(batch, 2 * batch)], batch, result)
            job.save(result)
    return result


def _batch(fleet: Fleet, prompts: list[list[int]], batch: int, result: dict[str, Any]) -> None:
    def speed(engine: Engine) -> float:
        value, answer = tokens_per_s(engine, prompts, batch, TOKENS)
        result["acceptance_length"].setdefault(engine.name, {})[batch] = acceptance_length(answer["counts"])
        return value

    values = take_turns(fleet, list(fleet.engines), speed, REPEATS)
    result["tokens_per_s"][batch] = {name: kept(found) for name, found in values.items()}
    if "dflash" in values:
        result["ratio_vs_dflash"][batch] = {
            name: kept(ratios(values, name, "dflash")) for name in values if name != "dflash"
        }
    timed = partial(step_ms, prompts=prompts[:batch], length=TOKENS)
    steps = {name: kept(found) for name, found in take_turns(fleet, list(fleet.engines), timed, REPEATS).items()}
    result["step_ms"][batch] = steps
    medians = {name: row["median"] for name, row in steps.items()}
    say(f"batch {batch:3d}: {medians} ms a step")
    for name, found in values.items():
        tau = result["acceptance_length"][name][batch]
        ratio = result["ratio_vs_dflash"].get(batch, {}).get(name, {}).get("median")
        say(f"batch {batch:3d} {name:16} {spread(found)['median']:9.1f} tokens/s  tau {tau}  {ratio} of the chain's")
