"""The file of a shard: what was measured, on what, by which command."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.workloads import read_prompts
from runners.machine import machine_facts


@dataclass(frozen=True)
class Record:
    """``versions``: of the engine, beside those of this interpreter."""

    experiment: str
    shard: str
    path: Path
    versions: Mapping[str, str | None]

    def save(self, measured: dict[str, Any]) -> None:
        """Written after every part, so that what was measured outlives whatever ends the shard."""
        facts = machine_facts()
        record = {
            "command": f"python -m ddbench experiment={self.experiment} shard={self.shard}",
            "date": datetime.now(UTC).date().isoformat(),
            "gpu": facts["gpus"][0]["name"] if facts["gpus"] else None,
            "driver": facts["driver"],
            "versions": {"python": facts["python"], "torch": facts["packages"].get("torch"), **self.versions},
            "measured": measured,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(record, indent=1) + "\n")


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
