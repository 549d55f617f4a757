"""What a replay is told: the shapes are its own, everything else is the recording's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.overrides import key_of, overrides
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
    """``settings``: those of a sweep over the replay's shapes, with the recording's everything else, which ``recorded``
    has as a configuration has it."""

    settings: Settings
    replay: ReplaySettings
    check: bool
    folder: RecordFolder
    recording: Recording
    recorded: dict[str, Any]

    def told(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration as the run's folder keeps it: with the recording's own, and the run's name."""
        return {**config, **self.recorded, "run_id": self.settings.run_id}


def load(config: Mapping[str, Any], run_id: str) -> Asked:
    """The settings of a replay.

    Raises:
        ConfigError: no such recording, a setting that cannot be, or one asked for that was recorded otherwise.
    """
    given = config.get("run")
    if not isinstance(given, str):
        raise ConfigError("run", given, "the folder of an experiment=record, as printed at its end")
    folder = RecordFolder(Path(given))
    recording = folder.read()
    recorded = folder.config()
    theirs = {key: recorded[key] for key in RECORDED if key in recorded}
    _refuse_other(config, recorded)
    mine = {key: value for key, value in config.items() if key not in (*OWN, *RECORDED)}
    sweep = {**config["sweep"], "batch_size": [1], "temperature": list(recording.temperatures)}
    settings, _ = load_recorded({**mine, **theirs, "record": recorded["record"], "sweep": sweep}, run_id)
    check = config.get("check", False)
    if not isinstance(check, bool):
        raise ConfigError("check", check, "true or false")
    own = build(ReplaySettings, config.get("replay") or {}, "replay")
    return Asked(settings, own, check, folder, recording, theirs)


def _refuse_other(config: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
    """Nothing that the command line asks for is left unheard: what is the recording's can only be what that has.

    Entries of a config group are compared by their names, where they have some.

    Raises:
        ConfigError: the first that was recorded otherwise.
    """
    for each in overrides():
        key = key_of(each)
        if key.partition(".")[0] not in RECORDED and key != "sweep.temperature":
            continue
        mine, theirs = (_named(data, key) for data in (config, recorded))
        if mine != theirs:
            was = "left out" if isinstance(theirs, Mapping) else f"{theirs!r}, or left out"
            raise ConfigError(key, each.partition("=")[2], f"{was}: it is the recording's")


def _named(config: Mapping[str, Any], key: str) -> Any:
    """What a dotted key says; of a config group its name, else all of it."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value.get("name", value) if isinstance(value, Mapping) else value
