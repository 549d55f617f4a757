"""The file of a shard: what was measured, on what, by which command."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.workloads import read_prompts
from runners.machine import machine_facts

PATH = re.compile(r"(?<![\w/:.<])(?:/[\w.+@~-]+){2,}")  # of a file or folder, from the root; no address
PACKAGES = ("torch", "triton", "sglang", "vllm", "transformers", "flashinfer", "ddbench", "experiments", "runners")


@dataclass(frozen=True)
class Record:
    """``options``: of the command, by name, None where it had none. ``versions``: of the engine, beside those of this
    interpreter."""

    experiment: str
    shard: str
    path: Path
    options: Mapping[str, Any]
    versions: Mapping[str, str | None]

    def save(self, measured: dict[str, Any]) -> None:
        """Written after every part, so that what was measured outlives whatever ends the shard."""
        facts = machine_facts()
        record = {
            "command": command(self.experiment, self.shard, self.options),
            "options": dict(self.options),
            "date": datetime.now(UTC).date().isoformat(),
            "gpu": facts["gpus"][0]["name"] if facts["gpus"] else None,
            "driver": facts["driver"],
            "versions": {"python": facts["python"], "torch": facts["packages"].get("torch"), **self.versions},
            "measured": plain(measured),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


def command(experiment: str, shard: str, options: Mapping[str, Any]) -> str:
    """The line for a shell that runs this shard again; options that are None are left out."""
    words = ["python", "-m", "ddbench", f"experiment={experiment}", f"shard={shard}"]
    for name, value in options.items():
        if value is not None:
            words.append(f"{name}=[{','.join(map(str, value))}]" if isinstance(value, list) else f"{name}={value}")
    return shlex.join(words)


def plain(data: Any) -> Any:
    """What a file may hold: numbers that are none become None, and paths of this machine lose their folders."""
    if isinstance(data, Mapping):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return PATH.sub(_inside, data) if isinstance(data, str) else data


def _inside(found: re.Match[str]) -> str:
    """A path from its package on, or its last part."""
    parts = found[0].rpartition("/site-packages/")[2].split("/")
    start = next((index for index, part in enumerate(parts) if part in PACKAGES), len(parts) - 1)
    return "/".join(parts[start:])


def version_of(python: str, distribution: str) -> str | None:
    """Version of a distribution in the environment of ``python``; None where there is none."""
    code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def shipped_prompts(assets: Path) -> list[list[int]]:
    """The shipped prompts as the tiny target's tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(assets / "target" / "tokenizer.json"))
    prompts = read_prompts("workload.path", str(assets / "prompts.jsonl"))
    return [tokenizer.encode(prompt.turns[0]).ids for prompt in prompts]
