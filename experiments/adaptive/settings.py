"""What ``experiment=adaptive`` is told: a recording, a cost file, batch sizes, and whether to decode live as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddbench.adaptive import POLICIES, Candidates, usual_candidates
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
    """``nodes``: the largest budget, None: as many as were recorded. ``trees``, ``chains``: all budgets and depths of
    chains to choose from, None: the usual ones. ``judge``: an evidence file of the cost's setup, whose measured round
    times price every arm (:mod:`experiments.adaptive.judge`), None: the cost does. ``knows``: policies choose by the
    judge's prices as well, as with a cost file that was measured at all of their widths. ``fill``: the prompts are
    taken again until there are so many for each row of the batch, so that it is full most of the time. ``decode``: also
    decode some of the prompts on the reference engine, as ``live`` says (:class:`LiveSettings`). ``evidence``: a file
    to keep what was found in."""

    batch_size: tuple[int, ...]
    policies: tuple[str, ...]
    nodes: int | None = None
    trees: tuple[int, ...] | None = None
    chains: tuple[int, ...] | None = None
    judge: str | None = None
    knows: bool = False
    evidence: str | None = None
    fill: int = 10
    decode: bool = False
    live: LiveSettings = field(default_factory=LiveSettings)

    def __post_init__(self) -> None:
        if not self.batch_size or min(self.batch_size) < 1:
            raise ConfigError("adaptive.batch_size", list(self.batch_size), "integers >= 1")
        unknown = [name for name in self.policies if name not in POLICIES]
        if unknown or not self.policies:
            raise ConfigError("adaptive.policies", list(self.policies), f"some of {', '.join(POLICIES)}")
        if self.knows and self.judge is None:
            raise ConfigError("adaptive.knows", True, "false without adaptive.judge")
        if self.nodes is not None and self.trees is not None:
            raise ConfigError("adaptive.nodes", self.nodes, "null where adaptive.trees lists the budgets")
        for name in ("nodes", "fill"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"adaptive.{name}", value, "an integer >= 1")


@dataclass(frozen=True)
class Comparison:
    """``replayed``: the recording, as a replay is given it; ``other_model``: as `experiments.replay.priced` has it."""

    replayed: Asked
    cost: CostModel
    adaptive: AdaptiveSettings
    other_model: str | None

    def candidates(self) -> Candidates:
        """What the policies choose from, and the fixed arms. Raises ConfigError."""
        recorded, told = self.replayed.recording, self.adaptive
        usual = usual_candidates(told.nodes or recorded.nodes, recorded.depth)
        return Candidates(
            usual.trees if told.trees is None else tuple(sorted(set(told.trees))),
            usual.chains if told.chains is None else tuple(sorted(set(told.chains))),
        )


def load(config: Mapping[str, Any], run_id: str) -> Comparison:
    """The settings of a comparison.

    Raises:
        ConfigError: no such recording or cost file, two that are of different models, or a setting that cannot be.
    """
    asked = build(AdaptiveSettings, config.get("adaptive") or {}, "adaptive")
    if config["sweep"].get("batch_size") is not None:
        raise ConfigError("sweep.batch_size", config["sweep"]["batch_size"], "null: here it is adaptive.batch_size")
    priced = load_priced(config, OWN, run_id)
    replayed = priced.replayed
    recorded = replayed.recording
    for name, most, limit, what in (
        ("nodes", asked.nodes, recorded.nodes, "candidates that were recorded (record.nodes)"),
        ("trees", max(asked.trees or (0,)), recorded.nodes, "candidates that were recorded (record.nodes)"),
        ("chains", max(asked.chains or (0,)), recorded.depth, "depth that was recorded"),
    ):
        if most is not None and most > limit:
            raise ConfigError(f"adaptive.{name}", most, f"at most {limit}, the {what}")
    if asked.decode and replayed.settings.engine.name != "reference":
        raise ConfigError("adaptive.decode", True, "false: the recording is not of the reference engine")
    return Comparison(replayed, priced.cost, asked, priced.other_model)
