"""What ``experiment=predict`` is told: recording, cost file, shapes, batch sizes, and what to hold it against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.cost import CostModel
from ddbench.errors import ConfigError
from experiments.replay.priced import load_priced
from experiments.replay.settings import Asked
from experiments.typed import build
from experiments.validate.predict import SKUS

OWN = ("cost", "check", "predict")


@dataclass(frozen=True)
class PredictSettings:
    """``extrapolate``: also points outside of what the cost file was measured in, marked; else they have no numbers.

    ``card``: another GPU, by bandwidth and arithmetic alone (docs/pro6000.md); None: the one the cost is of.
    ``lengths``: a table of published acceptance lengths instead of a recording (:mod:`experiments.predict.published`),
    told at ``context`` committed tokens a sequence, and kept in the file ``evidence``.
    """

    extrapolate: bool
    card: str | None
    lengths: str | None = None
    context: float = 512.0
    evidence: str | None = None

    def __post_init__(self) -> None:
        if self.card is not None and self.card not in SKUS:
            raise ConfigError("predict.card", self.card, f"null, or one of {', '.join(SKUS)}")
        if self.context < 1:
            raise ConfigError("predict.context", self.context, "a number of tokens >= 1")
        if self.evidence is not None and self.lengths is None:
            raise ConfigError("predict.evidence", self.evidence, "null without predict.lengths")


@dataclass(frozen=True)
class Prediction:
    """``replayed``: the shapes, as a replay is asked for them; ``batch_sizes`` rise; ``check``: folder of a sweep.

    ``other_model``: as `experiments.replay.priced` has it.
    """

    replayed: Asked
    cost: CostModel
    cost_file: Path
    batch_sizes: tuple[int, ...]
    predict: PredictSettings
    check: Path | None
    other_model: str | None


def batch_sizes_of(config: Mapping[str, Any]) -> tuple[int, ...]:
    """``sweep.batch_size``, rising. Raises ConfigError."""
    sizes = config["sweep"]["batch_size"]
    found = tuple(sorted(set(sizes if isinstance(sizes, list) else [sizes])))
    if not found or any(type(size) is not int or size < 1 for size in found):
        raise ConfigError("sweep.batch_size", sizes, "integers >= 1")
    return found


def load(config: Mapping[str, Any], run_id: str) -> Prediction:
    """The settings of a prediction.

    Raises:
        ConfigError: no such recording or cost file, two that are of different models, or a setting that cannot be.
    """
    asked = build(PredictSettings, config.get("predict") or {}, "predict")
    batch_sizes = batch_sizes_of(config)
    priced = load_priced(config, OWN, run_id)
    check = config.get("check")
    if check is not None and not (isinstance(check, str) and (Path(check) / "cells").is_dir()):
        raise ConfigError("check", check, "the folder of a sweep, as printed at its end, or null")
    held = Path(check) if check else None
    return Prediction(priced.replayed, priced.cost, priced.file, batch_sizes, asked, held, priced.other_model)
