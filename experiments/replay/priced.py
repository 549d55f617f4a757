"""A recording and what its model's rounds cost: what a prediction and a comparison of policies begin with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.cost import CostModel, load_cost
from ddbench.errors import ConfigError
from experiments.replay.settings import Asked
from experiments.replay.settings import load as load_replayed
from experiments.step_cost.fingerprint import check_same_model, target_shape


@dataclass(frozen=True)
class Priced:
    """``replayed``: the recording, as a replay is given it; ``file``: where its cost was read from.

    ``other_model``: where ``what_if`` lets rounds of one model meet the times of another, what both are; None: one
    model's. Such speeds are nobody's, and every page of theirs says so.
    """

    replayed: Asked
    cost: CostModel
    file: Path
    other_model: str | None


def cost_of(config: Mapping[str, Any]) -> tuple[CostModel, str]:
    """What ``cost`` names, and its name. Raises ConfigError."""
    given = config.get("cost")
    if not isinstance(given, str):
        raise ConfigError("cost", given, "a cost file, as experiment=step_cost prints it at its end")
    return load_cost(given), given


def load_priced(config: Mapping[str, Any], own: Collection[str], run_id: str) -> Priced:
    """Of a verb whose keys ``own`` a replay does not know.

    Raises:
        ConfigError: no such recording or cost file, or two that are of different models, unless ``what_if`` is true.
    """
    what_if = config.get("what_if", False)
    if not isinstance(what_if, bool):
        raise ConfigError("what_if", what_if, "true or false")
    cost, given = cost_of(config)
    rest = {key: value for key, value in config.items() if key not in (*own, "what_if")}
    points = {"report_points": 0, "check_shapes": 1, "check_batch_size": 1}
    replayed = load_replayed({**rest, "check": False, "replay": points}, run_id)
    try:
        check_same_model(replayed.settings.model, cost, given)
    except ConfigError:
        if not what_if:
            raise
        model = replayed.settings.model
        rounds = f"rounds of {model.name} ({target_shape(model)})"
        return Priced(replayed, cost, Path(given), f"{rounds}, times of {cost.fingerprint.get('target')}")
    return Priced(replayed, cost, Path(given), None)
