"""The verb: one shard after another, each into a file of its own, and their figures into ``docs/evidence/sglang.json``.

A shard takes minutes and may be run again; ``shard=merge`` needs no GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.evidence.exclusive import alone
from experiments.evidence.reference import decode_all
from experiments.evidence.shards import Record, shipped_prompts, version_of
from experiments.progress import say
from experiments.sglang_evidence import (
    adaptive,
    host,
    hybrid,
    law,
    memory,
    node_logits,
    replay,
    rounds,
    stress,
    synthetic,
    tiny_checks,
    tiny_speed,
)
from experiments.sglang_evidence.counts import by_prompt
from experiments.sglang_evidence.job import Job
from experiments.sglang_evidence.known import check_arms
from experiments.sglang_evidence.merge import merge
from experiments.workloads import asset_path
from experiments.writable import check_place

OPTIONS = ("dtype", "arms", "batches", "prompts", "gpus", "restart", "limit_s")  # those that a shard depends on


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Runs ``config["shard"]`` and returns what is printed last.

    Raises:
        ConfigError: an unknown shard or arm, or an interpreter that is not there or has no SGLang.
    """
    shard, python = config["shard"], config["python"] or sys.executable
    if shard not in SHARDS:
        raise ConfigError("shard", shard, f"one of {', '.join(SHARDS)}")
    if shutil.which(python) is None:
        raise ConfigError("python", python, "the interpreter of an environment with SGLang and this project")
    folder, dtype = Path(config["folder"]), config["dtype"]
    if shard == "merge":
        check_place("output", config["output"], "experiment=sglang_evidence")
        return {"evidence": str(merge(folder, Path(config["output"])))}
    check_arms(shard, config["arms"])
    name = "_".join([shard, *([dtype] if dtype != "bfloat16" else []), *_again(config["restart"])])
    versions = {"sglang": version_of(python, "sglang")}
    if versions["sglang"] is None and shard != "reference":
        raise ConfigError(
            "python", python, "the interpreter of an environment with SGLang and this project: it has none"
        )
    options = {option: config[option] for option in OPTIONS}
    record = Record("sglang_evidence", shard, folder / f"{name}.json", options, versions)
    assets = asset_path("asset://target").parent
    prompts = shipped_prompts(assets)
    job = Job(
        shard=shard,
        python=python,
        assets=assets,
        prompts=prompts[: config["prompts"] or len(prompts)],
        dtype=dtype,
        arms=config["arms"],
        batches=config["batches"],
        gpus=config["gpus"],
        restart=config["restart"],
        logs=folder / f"{name}_logs",
        limit_s=config["limit_s"],
        save=record.save,
    )
    with alone(job.limit_s) if shard in TIMED else nullcontext(0.0) as waited:
        measured = MEASURES[shard](replace(job, limit_s=job.limit_s - waited))
    record.save(measured)
    say(f"shard {shard}: {record.path}")
    return {"shard": shard, "file": str(record.path), "failed": measured.get("failed", {})}


def _reference(job: Job) -> dict[str, Any]:
    """The tiny pair on the reference engine, on this CPU: what acceptance must be."""
    found = decode_all(job.assets, job.prompts, tiny_checks.LENGTH, "cpu")
    return {
        name: {key: value for key, value in one.items() if key not in ("tokens", "rounds")}
        | {"by_prompt": by_prompt(one["tokens"], one["rounds"])}
        for name, one in found.items()
    }


def _kernels(job: Job) -> dict[str, Any]:
    """The last line of ``benchmarks/sglang_kernels.py``: the plug-in's kernels one by one."""
    program = Path(__file__).parents[2] / "benchmarks" / "sglang_kernels.py"
    done = subprocess.run([job.python, str(program)], stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines()[:-1]:
        say(line)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _again(restart: int) -> list[str]:
    """Nothing for the first start; a shard that is started again has a file of its own."""
    return [str(restart)] if restart > 1 else []


MEASURES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "tiny_checks": tiny_checks.measure,
    "node_logits": node_logits.measure,
    "law": law.measure,
    "stress": stress.measure,
    "replay": replay.measure,
    "adaptive": adaptive.measure,
    **dict.fromkeys(hybrid.SHARDS, hybrid.measure),
    "tiny_speed": tiny_speed.measure,
    **dict.fromkeys(rounds.GROUPS, rounds.measure),
    "stages": rounds.stages,
    "host": host.measure,
    "synthetic": synthetic.measure,
    "memory": memory.measure,
    "kernels": _kernels,
    "reference": _reference,
}
SHARDS = (*MEASURES, "merge")
TIMED = ("tiny_speed", "adaptive", *rounds.GROUPS, "stages", "host", "synthetic", "kernels")  # alone on the GPU
