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
from experiments.evidence.shards import plain
from experiments.progress import warn
from experiments.settings import Settings, load_settings
from experiments.store import RunFolder
from experiments.validate import measure
from experiments.validate.record import command, today
from experiments.validate.verdict import Value
from reports.frames import read_run
from runners.machine import machine_facts

SWEEPS = ("tiny", "rounds")
TOLD = ("command", "started", "python", "packages", "git_commit")  # of environment.json, what a verdict repeats


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
    """Cells that cannot be read in full are told as warnings, in the words of a report.

    Raises:
        ConfigError: the folder is none of a validation, nothing was measured, or what says with what is damaged.
    """
    there = tuple(name for name in SWEEPS if any((folder / name / "cells").glob("*/status.json")))
    if not there:
        raise ConfigError("validate.judge", str(folder), "the folder of a validation, as its summary names it in `run`")
    configs, environments = {}, []
    for name in there:
        try:
            path = folder / name / "config.yaml"
            configs[name] = _with(yaml.safe_load(path.read_text(encoding="utf-8")))
            settings = load_settings(configs[there[0]], folder.name)
            path = folder / name / "environment.json"
            environments.append(_with(json.loads(path.read_text(encoding="utf-8")), *TOLD))
        except (OSError, ValueError, yaml.YAMLError) as error:
            allowed = f"a folder with a whole {name}/{path.name} ({str(error).splitlines()[0]})"
            raise ConfigError("validate.judge", str(folder), allowed) from None
        for problem in read_run(folder / name).problems:
            warn(f"{name}/{problem}")
    tiny = configs.get("tiny") or {}
    return Stored(
        folder=folder,
        settings=settings,
        environment=max(environments, key=lambda each: str(each["started"])),
        sweeps=there,
        prompts=(tiny.get("workload") or {}).get("max_prompts"),
        new_tokens=(tiny.get("load") or {}).get("max_new_tokens"),
    )


def _with(found: Any, *keys: str) -> dict[str, Any]:
    """Raises ValueError where a file's content is no mapping, or lacks one of ``keys``."""
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} in the place of a mapping")
    missing = [key for key in keys if key not in found]
    if missing:
        raise ValueError(f"without {', '.join(missing)}")
    wrong = [key for key in ("packages", "host") if not isinstance(found.get(key) or {}, Mapping)]
    if keys and wrong:
        raise ValueError(f"{wrong[0]} is no mapping")
    return found


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
        place = stored.folder / name
        counts.update(RunFolder(place).counts(load(place).analysis.suspect_cells))
    return +counts  # without those that there are none of


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
        "command": plain(told["command"]),
        "date": str(told["started"])[:10],
        "gpu": gpu,
        "driver": stored.facts.get("driver"),
        "versions": {"python": told["python"], **told["packages"], "engine": seen["engine"]},
        "git_commit": told["git_commit"],
        "builds": seen["builds"],
        "judged": {"command": command(), "date": today()} | {key: now[key] for key in ("git_commit", "git_dirty")},
    }
