"""``validate.judge``: a validation that was measured before, judged once more by this ddbench; nothing is measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ddbench import load
from ddbench.errors import ConfigError
from experiments.settings import Settings, load_settings
from experiments.validate import measure
from experiments.validate.record import command, today, without_folders
from experiments.validate.verdict import Value
from runners.machine import machine_facts

SWEEPS = ("tiny", "rounds")


@dataclass(frozen=True)
class Stored:
    """A validation's folder as it was left.

    ``settings`` and ``environment`` are those of its last sweep that ran; ``prompts`` and ``new_tokens`` of the tiny
    pair, None where they were as predicted or it was left out. ``sweeps``: those with cells.
    """

    folder: Path
    settings: Settings
    environment: Mapping[str, Any]
    sweeps: tuple[str, ...]
    prompts: int | None
    new_tokens: int | None

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the host said of itself."""
        found: Mapping[str, Any] = self.environment.get("host") or {}
        return found


def read(folder: Path) -> Stored:
    """Raises ConfigError where the folder is none of a validation, or nothing was measured."""
    there = tuple(name for name in SWEEPS if any((folder / name / "cells").glob("*/status.json")))
    if not there:
        raise ConfigError("validate.judge", str(folder), "the folder of a validation, as its summary names it in `run`")
    try:
        configs = {name: yaml.safe_load((folder / name / "config.yaml").read_text(encoding="utf-8")) for name in there}
        environments = [json.loads((folder / name / "environment.json").read_text(encoding="utf-8")) for name in there]
    except (OSError, ValueError, yaml.YAMLError) as error:
        told = str(error).splitlines()[0]
        raise ConfigError("validate.judge", str(folder), f"a folder with configurations ({told})") from None
    tiny = configs.get("tiny") or {}
    return Stored(
        folder=folder,
        settings=load_settings(configs[there[0]], folder.name),
        environment=max(environments, key=lambda each: str(each["started"])),
        sweeps=there,
        prompts=(tiny.get("workload") or {}).get("max_prompts"),
        new_tokens=(tiny.get("load") or {}).get("max_new_tokens"),
    )


def values(stored: Stored, gpu: int) -> dict[str, Value]:
    """What was measured; keys of a sweep without cells are missing."""
    found = measure.of_host(dict(stored.facts), gpu)
    if "tiny" in stored.sweeps:
        found |= measure.of_tiny(stored.folder / "tiny", stored.settings.model)
    if "rounds" in stored.sweeps:
        found |= measure.of_rounds(stored.folder / "rounds")
    return found


def cells(stored: Stored) -> Counter[str]:
    """Cells by status, those of points that the report finds suspect among them."""
    counts: Counter[str] = Counter()
    for name in stored.sweeps:
        for row in load(stored.folder / name).results.itertuples():
            counts[str(row.status)] += len(row.cell_ids)
    return counts


def engines(folder: Path) -> dict[str, Any]:
    """With what the cells were measured: ``engine`` and its torch, and ``builds``, the hashes of what measured in it.

    ``engine`` is None without cells.
    """
    frames = [load(folder / name).cells for name in SWEEPS if (folder / name / "cells").is_dir()]
    versions, builds = (
        sorted({str(each) for cells in frames for each in cells[column].dropna()})
        for column in ("engine_version", "build")
    )
    return {"engine": "; ".join(versions) or None, "builds": builds}


def measured_then(stored: Stored, gpu: str | None) -> dict[str, Any]:
    """As :func:`experiments.validate.record.measured_now` was then, and who judges now."""
    told, now, seen = stored.environment, machine_facts(), engines(stored.folder)
    return {
        "command": without_folders(told["command"]),
        "date": str(told["started"])[:10],
        "gpu": gpu,
        "driver": stored.facts.get("driver"),
        "versions": {"python": told["python"], **told["packages"], "engine": seen["engine"]},
        "git_commit": told["git_commit"],
        "builds": seen["builds"],
        "judged": {"command": command(), "date": today()} | {key: now[key] for key in ("git_commit", "git_dirty")},
    }
