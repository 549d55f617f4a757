"""A validation's dry run: the cells of all its sweeps with what they will cost; nothing is started, no file is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ddbench.records import FINAL_STATUSES
from experiments import sweep
from experiments.validate import sweeps
from experiments.validate.predictions import Plan


def printed(
    config: Mapping[str, Any],
    folder: Path,
    tiny: Sequence[sweeps.Config],
    rounds: Plan | None,
    engine: str,
) -> dict[str, Any]:
    """Prints the plans ``tiny``, and that of random weights if any; the summary counts the cells of all.

    A strategy that several plans of the tiny pair have is the same cells, and printed once.
    """
    seen: set[str] = set()
    total: dict[str, Any] = {"run": str(folder), "report": None, "results": None}
    total |= {"cells": dict.fromkeys(FINAL_STATUSES, 0), "planned": 0, "dropped": 0}
    for each in tiny:
        asked = [strategy for strategy in each["sweep"]["strategy"] if strategy not in seen]
        seen |= set(asked)
        _print({**each, "sweep": {**each["sweep"], "strategy": asked}}, folder, "tiny", total)
    if rounds is not None and engine in sweeps.DUMMY:
        with TemporaryDirectory() as made:  # where the run has none yet: the models are files, though without weights
            models = folder / "models"
            place = models if (models / "target").is_dir() else Path(made)
            _print(sweeps.rounds(config, rounds, place, engine), folder, "rounds", total)
    return total


def _print(config: sweeps.Config, folder: Path, name: str, total: dict[str, Any]) -> None:
    place = {"output_dir": str(folder.parent), "name": folder.name, "run_id": name}
    summary = sweep.run_part({**config, **place}, name, whole=folder.name)
    for key in ("planned", "dropped"):
        total[key] += summary[key]
