"""``experiment=aa_check``: one arm against itself, so that every difference that is found is a false one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments import sweep
from experiments.engines import engine_of
from experiments.progress import warn
from experiments.settings import Settings, load_settings, one_workload
from experiments.typed import build

AXES = ("strategy", "batch_size", "temperature", "width", "depth", "nodes")
ENOUGH = 60  # pairs; with fewer a rate of 5 % is hardly told from one of 20 %


@dataclass(frozen=True)
class AaSettings:
    """``pairs`` of measurements, each of so many ``blocks`` of repetition."""

    pairs: int
    blocks: int

    def __post_init__(self) -> None:
        for name, least in (("pairs", 2), ("blocks", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"aa_check.{name}", getattr(self, name), f"an integer >= {least}")


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """A sweep of one point, whose blocks of repetition are dealt out to pairs of measurements (:mod:`reports.aa`).

    Two measurements of a pair differ in what two arms of a sweep differ in: where each arm has a server of its own,
    each block is a fresh start; where one engine serves all arms, all are on the same. The summary has, beside a
    sweep's, :class:`reports.aa.FalsePositives` as ``aa_check``, null where nothing could be compared.

    Raises:
        ConfigError: more than one arm, batch size or temperature, or whatever a sweep refuses.
    """
    asked = build(AaSettings, config.get("aa_check") or {}, "aa_check")
    if asked.pairs < ENOUGH:
        warn(f"aa_check.pairs={asked.pairs}: fewer than {ENOUGH} say little about a rate of 5 %")
    settings = load_settings(config, run_id)
    _one_point(settings)
    load = {"blocks": 2 * asked.pairs * asked.blocks, "restart": engine_of(settings.engine.name).server_per_arm}
    summary = sweep.run({**config, "load": {**config["load"], **load}}, run_id)
    if summary["report"] is None:  # a dry run, or nothing measured
        return summary
    return {**summary, "aa_check": _found(Path(summary["run"]))}


def _one_point(settings: Settings) -> None:
    """Raises ConfigError where the sweep has more than one point."""
    one_workload(settings, "one arm is measured against itself on one workload")
    shapeless = settings.sweep.strategy == ("autoregressive",)
    for axis in AXES[:3] if shapeless else AXES:
        values = getattr(settings.sweep, axis)
        if len(values) > 1:
            raise ConfigError(f"sweep.{axis}", list(values), "one value: one arm is measured against itself")


def _found(run: Path) -> dict[str, Any] | None:
    from reports.aa import false_positives
    from reports.aggregate import points_of
    from reports.frames import read_run

    stored = read_run(run)
    found = false_positives(stored, points_of(stored))
    return None if found is None else asdict(found)
