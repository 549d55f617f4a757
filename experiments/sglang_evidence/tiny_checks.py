"""The tiny pair on a GPU, greedy: is every arm's text the autoregressive one, and how much is accepted?

All engines live on one GPU and are asked at the same time, since nothing is timed. Batch sizes come largest first, and
one that there is no time for is named, not run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.evidence.identity import TIES
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm, Pair
from experiments.sglang_evidence.counts import acceptance_length, by_prompt, histogram
from experiments.sglang_evidence.fleet import Fleet
from experiments.sglang_evidence.identity import Judge
from experiments.sglang_evidence.job import Job
from runners.base import EngineFailure

Measured = dict[str, Any]

BATCHES = [32, 8, 1]
LENGTH = 128
CONTEXT, TOKENS = 1024, 32_768
SECONDS_LEFT = {32: 8.0, 8: 12.0, 1: 30.0}  # without as many left before the limit, a batch size is not begun
CHAIN = Arm("dflash", "dflash", 15)
TREE = Arm("ddtree", "ddtree", 63)
ARMS = (
    Arm("autoregressive"),
    CHAIN,
    TREE,
    Arm("ddtree_k1", "ddtree", 15, width=1),  # a chain, through the tree's mask, walk and moves
    replace(TREE, name="ddtree_eager", graphs=False),
    replace(TREE, name="ddtree_sync", overlap=False),
    Arm("ddtree_15", "ddtree", 15),
    Arm("ddtree_31", "ddtree", 31),
    Arm("ddtree_127", "ddtree", 127),
    Arm("eagle_16", "eagle", 15, width=4, depth=7),
    replace(CHAIN, name="dflash_flashinfer", backend="flashinfer"),  # no kernels in float32: bfloat16 alone
    replace(TREE, name="ddtree_flashinfer", backend="flashinfer"),
    Arm("ddtree_k1_flashinfer", "ddtree", 15, width=1, backend="flashinfer"),
    replace(CHAIN, name="dflash_tp2", ranks=2),
    replace(TREE, name="ddtree_tp2", ranks=2),
)
FIRST = ("autoregressive", "dflash", "ddtree", "ddtree_k1", "ddtree_eager", "ddtree_sync")
PAIRS = (
    ("ddtree_k1", "dflash"),
    ("ddtree_eager", "ddtree"),
    ("ddtree_sync", "ddtree"),
    ("dflash_tp2", "dflash"),
    ("ddtree_tp2", "ddtree"),
    ("ddtree_k1_flashinfer", "dflash_flashinfer"),
)


def pair_of(assets: Path, dtype: str) -> Pair:
    return Pair(assets / "target", assets / "dflash", assets / "eagle3", dtype, False, CONTEXT, TOKENS)


def chosen(names: Sequence[str] | None, dtype: str) -> list[Arm]:
    """The named arms, ``FIRST`` for None. In float32 every engine runs PyTorch's own operators (see `inside.py`)."""
    arms = [arm for arm in ARMS if arm.name in (names or FIRST)]
    return [replace(arm, hooks=("float32",)) for arm in arms] if dtype == "float32" else arms


def measure(job: Job) -> Measured:
    """Identity, acceptance, and pairs of arms that must agree; saved after every batch size."""
    began = time.perf_counter()
    prompts, arms = job.prompts, chosen(job.arms, job.dtype)
    batches = sorted(job.batches or BATCHES, reverse=True)
    result: Measured = {
        "dtype": job.dtype,
        "prompts": len(prompts),
        "length": LENGTH,
        "threshold_logits": TIES[job.dtype],
        "arms": [arm.name for arm in arms],
        "skipped": [],
    }
    for arm in arms:
        if arm.ranks > job.gpus:
            raise ConfigError("gpus", job.gpus, f"{arm.ranks} at least: {arm.name} has a rank on each")
    gpus = [0 if arm.ranks > 1 else index % job.gpus for index, arm in enumerate(arms)]
    pair = pair_of(job.assets, job.dtype)
    with Fleet(job.python, pair, arms, batches, job.logs, gpus, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        result["started"] = {name: engine.facts for name, engine in fleet.engines.items()}
        job.save(result)
        for batch in batches:
            left = job.limit_s - (time.perf_counter() - began)
            if left < SECONDS_LEFT.get(batch, 10.0):
                result["skipped"].append(batch)
                say(f"batch {batch}: not run, {left:.0f} s left")
                continue
            _batch(fleet, prompts, batch, left, result)
            job.save(result)
    return result


def _batch(fleet: Fleet, prompts: list[list[int]], batch: int, left_s: float, result: Measured) -> None:
    params = {"temperature": 0.0, "max_new_tokens": LENGTH}
    request = {"prompts": prompts, "params": params, "in_flight": batch}
    clock = time.perf_counter()
    answers = fleet.ask_all(lambda engine: request, left_s)
    tokens = {name: answer["tokens"] for name, answer in answers.items() if not answer["errors"]}
    for name, answer in answers.items():
        if answer["errors"]:
            result["failed"][f"{name} at {batch}"] = str(answer["errors"])[:2000]
            say(f"{name} at batch {batch}: {len(answer['errors'])} requests failed: {str(answer['errors'])[:500]}")
        result.setdefault("acceptance_length", {}).setdefault(name, {})[batch] = acceptance_length(answer["counts"])
        result.setdefault("histogram", {}).setdefault(name, {})[batch] = histogram(answer["counts"])
        result.setdefault("drafted", {}).setdefault(name, {})[batch] = _drafted(answer["counts"])
        rounds = [int(row.get("spec_verify_ct", 0)) for row in answer["counts"]]
        result.setdefault("by_prompt", {}).setdefault(name, {})[batch] = by_prompt(answer["tokens"], rounds)
        result.setdefault("seconds", {}).setdefault(name, {})[batch] = round(answer["seconds"], 2)
    _compare(fleet, prompts, tokens, batch, result)
    say(f"batch {batch}: {time.perf_counter() - clock:.0f} s")
    for line in table(result, batch):
        say(line)


def _compare(
    fleet: Fleet, prompts: list[list[int]], tokens: dict[str, list[list[int]]], batch: int, result: Measured
) -> None:
    if "autoregressive" not in fleet.engines or "autoregressive" not in tokens:
        return
    judge = Judge(fleet.engines["autoregressive"], result["dtype"])
    try:
        for name in tokens:
            if name != "autoregressive":
                found = judge.compare(prompts, tokens[name], tokens["autoregressive"])
                result.setdefault("identity", {}).setdefault(name, {})[batch] = found
        for one, other in PAIRS:
            if one in tokens and other in tokens:
                found = judge.compare(prompts, tokens[one], tokens[other])
                result.setdefault("pairs", {}).setdefault(f"{one}={other}", {})[batch] = found
    except EngineFailure as failure:
        fleet.lose(fleet.engines["autoregressive"], failure)


def _drafted(counts: list[dict[str, Any]]) -> dict[str, int]:
    """Rounds and proposed tokens: that the arm ran what it was asked for."""
    return {
        "rounds": sum(int(row.get("spec_verify_ct", 0)) for row in counts),
        "proposed": sum(int(row.get("spec_num_proposed_drafts", 0)) for row in counts),
    }


def table(result: Measured, batch: int) -> list[str]:
    """What came of a batch size, a line an arm."""
    lines = [f"{'arm':16} {'identical':>9} {'differ':>6} {'widest':>7} {'no tie':>6} {'tau':>7} {'seconds':>8}"]
    for name, lengths in result["acceptance_length"].items():
        if batch not in lengths:
            continue
        found = result.get("identity", {}).get(name, {}).get(batch)
        told = "" if found is None else _ledger(found)
        tau = "" if lengths[batch] is None else f"{lengths[batch]:.4f}"
        lines.append(f"{name:16} {told:31} {tau:>7} {result['seconds'][name][batch]:8.1f}")
    for pair, batches in result.get("pairs", {}).items():
        if batch in batches:
            lines.append(f"{pair:24} {_ledger(batches[batch])}")
    return lines


def _ledger(found: dict[str, Any]) -> str:
    widest = found["widest_gap_logits"]
    told = f"{'none':>7}" if widest is None else f"{widest:7.3f}"
    return f"{found['share']:9.4f} {found['differences']:6d} {told} {found['unexplained']:6d}"
