"""What a replay is told: the shapes are its own, everything else is the recording's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.record.folder import RecordFolder, Recording
from experiments.record.settings import load as load_recorded
from experiments.settings import Settings
from experiments.typed import build

RECORDED = ("engine", "model", "workload", "load", "host", "seed", "drafters", "role")  # taken from the recording
OWN = ("run", "check", "replay", "record")  # keys that no sweep knows


@dataclass(frozen=True)
class ReplaySettings:
    """``report_points``: up to so many points, cells and a report are written as a sweep writes them; a larger grid
    leaves ``surface.parquet`` alone. ``check_*``: see :mod:`experiments.replay.check`."""

    report_points: int
    check_shapes: int
    check_batch_size: int

    def __post_init__(self) -> None:
        if self.report_points < 0:
            raise ConfigError("replay.report_points", self.report_points, "an integer >= 0")
        for name in ("check_shapes", "check_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"replay.{name}", getattr(self, name), "an integer >= 1")


@dataclass(frozen=True)
class Asked:
    """``settings``: those of a sweep over the replay's shapes, with the recording's everything else."""

    settings: Settings
    replay: ReplaySettings
    check: bool
    folder: RecordFolder
    recording: Recording


def load(config: Mapping[str, Any], run_id: str) -> Asked:
    """The settings of a replay.

    Raises:
        ConfigError: no such recording, or a setting that cannot be.
    """
    given = config.get("run")
    if not isinstance(given, str):
        raise ConfigError("run", given, "the folder of an experiment=record, as printed at its end")
    folder = RecordFolder(Path(given))
    recording = folder.read()
    recorded = folder.config()
    mine = {key: value for key, value in config.items() if key not in (*OWN, *RECORDED)}
    theirs = {key: recorded[key] for key in RECORDED if key in recorded}
    sweep = {**config["sweep"], "batch_size": [1], "temperature": list(recording.temperatures)}
    settings, _ = load_recorded({**mine, **theirs, "record": recorded["record"], "sweep": sweep}, run_id)
    check = config.get("check", False)
    if not isinstance(check, bool):
        raise ConfigError("check", check, "true or false")
    return Asked(settings, build(ReplaySettings, config.get("replay") or {}, "replay"), check, folder, recording)
