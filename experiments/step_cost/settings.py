"""What ``step_cost.*`` may say; the axes are a sweep's own: strategy, nodes, depth (of the chain) and batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ddbench.cost import KINDS
from ddbench.errors import ConfigError
from experiments.settings import Settings, load_settings, one_workload
from experiments.typed import build

STRATEGIES = tuple(kind for kind in KINDS if kind != "prefill")  # those whose steps are measured


@dataclass(frozen=True)
class StepCostSettings:
    """What is measured, beside the axes.

    Attributes:
        context: tokens of the prompts; the first for the whole grid, the others for its corners.
        prefill: lengths of single prompts whose reading is timed.
        most_tokens, most_cached: points of more tokens a pass, or of prompts (batch x context), are left out.
        accepted: drafted tokens that every round keeps, where the engine can pin it.
        steps, repeats: steps of a repeat, repeats of a point.
        limit_s: seconds after which no further repeat is begun; None: no limit.
        clock: ``wall``, or ``cpu`` for the processor's own seconds of a reference engine on a CPU that others use too.
        stages: of SGLang, events around the parts of a round.
        evidence: an evidence file, or a cost file, to be taken instead of measuring.
        against: an evidence file whose numbers the cost file is held against at the end.
        kept: with ``against``, a file to keep these errors in.
        page: whether a page is made, which needs what reports need.
    """

    context: tuple[int, ...]
    prefill: tuple[int, ...]
    most_tokens: int
    most_cached: int | None
    accepted: int
    steps: int
    repeats: int
    limit_s: float | None
    clock: Literal["wall", "cpu"]
    stages: bool
    evidence: str | None
    against: str | None
    page: bool
    kept: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("most_tokens", 1), ("accepted", 0), ("steps", 1), ("repeats", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"step_cost.{name}", getattr(self, name), f"an integer >= {least}")
        if not self.context or min(self.context) < 1:
            raise ConfigError("step_cost.context", list(self.context), "at least one integer >= 1")
        if any(length < 1 for length in self.prefill):
            raise ConfigError("step_cost.prefill", list(self.prefill), "integers >= 1")
        if self.most_cached is not None and self.most_cached < 1:
            raise ConfigError("step_cost.most_cached", self.most_cached, "an integer >= 1, or null")
        if self.kept is not None and self.against is None:
            raise ConfigError("step_cost.kept", self.kept, "null without step_cost.against")
        if self.limit_s is not None and self.limit_s <= 0:
            raise ConfigError("step_cost.limit_s", self.limit_s, "seconds > 0, or null")


def load(config: Mapping[str, Any], run_id: str) -> tuple[Settings, StepCostSettings]:
    """The settings of a measurement.

    Raises:
        ConfigError: a setting that cannot be.
    """
    settings = load_settings({key: value for key, value in config.items() if key != "step_cost"}, run_id)
    one_workload(settings, "the text of a step cost is random")
    asked = build(StepCostSettings, config.get("step_cost") or {}, "step_cost")
    if settings.dry_run:
        raise ConfigError("dry_run", True, "false: step_cost has no plan to list")
    if settings.host.kind != "local":
        raise ConfigError("host", settings.host.name, "local: it is run on the machine that is measured")
    if settings.drafters:
        raise ConfigError("drafters", settings.drafters, "none: one drafter is measured")
    if settings.sweep.temperature != (0.0,):
        raise ConfigError("sweep.temperature", list(settings.sweep.temperature), "0: a step is timed at greedy choice")
    if asked.against is not None and not Path(asked.against).is_file():
        raise ConfigError("step_cost.against", asked.against, "an evidence file, or null")
    others = [name for name in settings.sweep.strategy if name not in STRATEGIES]
    if others:
        raise ConfigError("sweep.strategy", others[0], f"some of {', '.join(STRATEGIES)}")
    if asked.clock == "cpu" and (settings.engine.name != "reference" or settings.engine.device != "cpu"):
        raise ConfigError("step_cost.clock", "cpu", "wall, but for the reference engine on a CPU")
    return settings, asked
