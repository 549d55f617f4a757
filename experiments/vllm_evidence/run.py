"""The verb: one shard after another, each into a file of its own, and their figures into ``docs/evidence/vllm.json``.

A shard takes minutes and may be run again; ``shard=merge`` needs no GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.evidence.dummy_models import write_dummy_pair
from experiments.evidence.reference import decode_all
from experiments.progress import say
from experiments.vllm_evidence import rounds, tiny
from experiments.vllm_evidence.merge import merge
from experiments.workloads import asset_path, read_prompts
from runners.machine import machine_facts

SHARDS = (
    "tiny_float32",
    "tiny_bfloat16",
    "tiny_speed",
    "rounds",
    "rounds_64",
    "kernels",
    "profile",
    "reference",
    "merge",
)


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Runs ``config["shard"]`` and returns what is printed last.

    Raises:
        ConfigError: an unknown shard, or an interpreter that is not there.
    """
    shard, python = config["shard"], config["python"] or sys.executable
    if shard not in SHARDS:
        raise ConfigError("shard", shard, f"one of {', '.join(SHARDS)}")
    if shutil.which(python) is None:
        raise ConfigError("python", python, "the interpreter of an environment with vLLM and this project")
    folder = Path(config["folder"])
    if shard == "merge":
        target = merge(folder, Path(config["output"]))
        return {"evidence": str(target)}
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine_facts()
    path = folder / f"{shard}.json"

    def save(measured: dict[str, Any]) -> None:
        """Written after every part, so that what was measured outlives whatever ends the shard."""
        versions = {"python": facts["python"], "torch": facts["packages"].get("torch"), "vllm": _vllm(python)}
        record = {
            "command": f"python -m ddbench experiment=vllm_evidence shard={shard}",
            "date": datetime.now(UTC).date().isoformat(),
            "gpu": facts["gpus"][0]["name"] if facts["gpus"] else None,
            "driver": facts["driver"],
            "versions": versions,
            "measured": measured,
        }
        path.write_text(json.dumps(record, indent=1) + "\n")

    measured = _measure(shard, python, folder, config["batches"], max(1, len(facts["gpus"])), save)
    save(measured)
    say(f"shard {shard}: {path}")
    return {"shard": shard, "file": str(path), "failed": measured.get("failed", {})}


def _measure(
    shard: str, python: str, folder: Path, batches: list[int] | None, gpus: int, save: rounds.Save
) -> dict[str, Any]:
    assets, logs = asset_path("asset://target").parent, folder / f"{shard}_logs"
    if shard == "tiny_speed":
        return tiny.speed(python, assets, _prompts(assets), logs, save)
    if shard.startswith("tiny_"):
        return tiny.measure(python, assets, _prompts(assets), shard.removeprefix("tiny_"), logs, gpus, save)
    if shard == "reference":
        return {name: _without_tokens(one) for name, one in decode_all(assets, _prompts(assets), 128, "cpu").items()}
    if shard == "kernels":
        return _kernels(python)
    models = folder / "dummy_models"
    write_dummy_pair(models)
    if shard == "profile":
        return rounds.profile(python, models, logs)
    usual = rounds.LARGE if shard == "rounds_64" else rounds.BATCHES
    return rounds.measure(python, models, logs, gpus, batches or usual, save)


def _without_tokens(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "tokens"}


def _kernels(python: str) -> dict[str, Any]:
    """The last line of ``benchmarks/vllm_kernels.py``."""
    program = Path(__file__).parents[2] / "benchmarks" / "vllm_kernels.py"
    done = subprocess.run([python, str(program)], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _vllm(python: str) -> str | None:
    """Version of vLLM in the environment of ``python``."""
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _prompts(assets: Path) -> list[list[int]]:
    """The shipped prompts as the tiny target's tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(assets / "target" / "tokenizer.json"))
    prompts = read_prompts("workload.path", str(assets / "prompts.jsonl"))
    return [tokenizer.encode(prompt.turns[0]).ids for prompt in prompts]
