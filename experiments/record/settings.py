"""What ``record.*`` may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ddbench.errors import ConfigError
from ddbench.tree.build import MOST_NODES
from experiments.engines import engine_of
from experiments.settings import Settings, load_settings, one_workload
from experiments.typed import build

ENGINES = ("reference", "sglang")


@dataclass(frozen=True)
class RecordSettings:
    """``nodes``: largest budget that a replay may ask for. ``batch_size``: requests in flight while text is decoded.

    ``by``: the strategy that decodes it; all are lossless, autoregressive decoding is what the others are held against.
    """

    nodes: int
    batch_size: int
    by: Literal["autoregressive", "dflash", "ddtree"]

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MOST_NODES:
            raise ConfigError("record.nodes", self.nodes, f"an integer from 1 to {MOST_NODES}")
        if self.batch_size < 1:
            raise ConfigError("record.batch_size", self.batch_size, "an integer >= 1")


def load(config: Mapping[str, Any], run_id: str) -> tuple[Settings, RecordSettings]:
    """The settings of a recording.

    Raises:
        ConfigError: a setting that cannot be, an engine that does not record, or a model without a block drafter.
    """
    settings = load_settings({key: value for key, value in config.items() if key != "record"}, run_id)
    one_workload(settings, "one is recorded")
    asked = build(RecordSettings, config.get("record") or {}, "record")
    if settings.engine.name not in ENGINES:
        raise ConfigError("engine", settings.engine.name, f"{' or '.join(ENGINES)}: the engines that record")
    if settings.engine.name == "sglang":
        _check_sglang(settings, asked)
    reason = engine_of(settings.engine.name).refuse_all(settings)
    if reason is not None:
        raise ConfigError("engine", settings.engine.name, f"an engine that can run this ({reason})")
    if settings.dry_run:
        raise ConfigError("dry_run", True, "false: record and replay have no plan to list")
    if settings.drafters:
        raise ConfigError("drafters", settings.drafters, "none: one drafter is recorded")
    if settings.model.dflash is None:
        allowed = "a model with a dflash drafter (an EAGLE drafter's offers depend on the tree that is asked for)"
        raise ConfigError("model", settings.model.name, allowed)
    return settings, asked


def _check_sglang(settings: Settings, asked: RecordSettings) -> None:
    """Raises ConfigError for what only the reference engine records."""
    if settings.engine.checkout is not None:
        raise ConfigError("engine.checkout", settings.engine.checkout, "null: our plug-in is what records")
    if any(settings.sweep.temperature):
        allowed = "[0.0] with engine=sglang: its draws are not keyed by position, so no other run has that text"
        raise ConfigError("sweep.temperature", list(settings.sweep.temperature), allowed)
    if asked.by != "autoregressive":
        raise ConfigError("record.by", asked.by, "autoregressive with engine=sglang: rounds of the root alone")
