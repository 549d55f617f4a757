"""What ``experiment=adaptive`` is told: a recording, a cost file, batch sizes, and whether to decode live as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddbench.adaptive import POLICIES
from ddbench.cost import CostModel
from ddbench.errors import ConfigError
from experiments.replay.priced import load_priced
from experiments.replay.settings import Asked
from experiments.typed import build

OWN = ("cost", "adaptive")


@dataclass(frozen=True)
class LiveSettings:
    """``adaptive.decode=true``: what is decoded on the reference engine beside the replay, in turns.

    ``batch_size``; ``nodes``: the fixed budgets among the arms; ``prompts``: as many, spread evenly over the recording;
    ``turns``: measurements of every arm, forwards and backwards.
    """

    batch_size: tuple[int, ...] = (1, 4, 8)
    nodes: tuple[int, ...] = (4, 8, 16, 32, 64)
    prompts: int = 16
    turns: int = 3

    def __post_init__(self) -> None:
        for name in ("batch_size", "nodes"):
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise ConfigError(f"adaptive.live.{name}", list(values), "integers >= 1")
        for name in ("prompts", "turns"):
            if getattr(self, name) < 1:
                raise ConfigError(f"adaptive.live.{name}", getattr(self, name), "an integer >= 1")


@dataclass(frozen=True)
class AdaptiveSettings:
    """``nodes``: the largest budget, None: as many as were recorded. ``fill``: the prompts are taken again until there
    are so many for each row of the batch, so that it is full most of the time. ``decode``: also decode some of the
    prompts on the reference engine, as ``live`` says (:class:`LiveSettings`)."""

    batch_size: tuple[int, ...]
    policies: tuple[str, ...]
    nodes: int | None = None
    fill: int = 10
    decode: bool = False
    live: LiveSettings = field(default_factory=LiveSettings)

    def __post_init__(self) -> None:
        if not self.batch_size or min(self.batch_size) < 1:
            raise ConfigError("adaptive.batch_size", list(self.batch_size), "integers >= 1")
        unknown = [name for name in self.policies if name not in POLICIES]
        if unknown or not self.policies:
            raise ConfigError("adaptive.policies", list(self.policies), f"some of {', '.join(POLICIES)}")
        for name in ("nodes", "fill"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"adaptive.{name}", value, "an integer >= 1")


@dataclass(frozen=True)
class Comparison:
    """``replayed``: the recording, as a replay is given it."""

    replayed: Asked
    cost: CostModel
    adaptive: AdaptiveSettings


def load(config: Mapping[str, Any], run_id: str) -> Comparison:
    """The settings of a comparison.

    Raises:
        ConfigError: no such recording or cost file, two that are of different models, or a setting that cannot be.
    """
    asked = build(AdaptiveSettings, config.get("adaptive") or {}, "adaptive")
    priced = load_priced(config, OWN, run_id)
    replayed = priced.replayed
    if asked.nodes is not None and asked.nodes > replayed.recording.nodes:
        allowed = f"at most {replayed.recording.nodes}, the candidates that were recorded (record.nodes)"
        raise ConfigError("adaptive.nodes", asked.nodes, allowed)
    if asked.decode and replayed.settings.engine.name != "reference":
        raise ConfigError("adaptive.decode", True, "false: the recording is not of the reference engine")
    return Comparison(replayed, priced.cost, asked)
