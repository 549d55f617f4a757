"""``predict.lengths``: published acceptance lengths at measured step times, where no recording is to be had.

    tokens/s per user = 1000 x published acceptance length / round ms(verify width, batch size, context)

A set of lengths is one harness on its prompts; sets are never joined. No loop is told, since nothing is known of single
requests, and no page can show that such lengths come at the engine's own trees.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from ddbench.cost import CostModel, inside
from ddbench.errors import ConfigError
from ddbench.records import FINAL_STATUSES
from ddbench.storage import write_whole
from experiments.evidence.predicted import keep
from experiments.predict import elsewhere as other
from experiments.predict.best import best, pays
from experiments.predict.settings import PredictSettings, batch_sizes_of
from experiments.predict.surface import Predicted, Shape, with_ratios
from experiments.progress import say
from experiments.replay.priced import cost_of
from experiments.settings import Settings, load_settings
from experiments.step_cost.fingerprint import check_same_model
from experiments.store import RunFolder
from experiments.typed import build
from experiments.writable import check_place

OWN = ("run", "cost", "check", "predict", "what_if")
NOTES = (
    "Predicted: acceptance lengths as others published them (their harness, prompts and averages; each set stands "
    "alone) over round times fitted to a cost file at one context, with the batch full and no prompt read. Nothing of "
    "it was run. outside: beyond what the cost was measured in. elsewhere: scaled to a card that was not measured."
)


@dataclass(frozen=True)
class Lengths:
    """One harness: ``dflash`` of the whole block's chain, None where it has none; ``ddtree`` by nodes.

    Lengths are tokens a round, the bonus token included, so none is below 1.
    """

    name: str
    source: str
    dflash: float | None
    ddtree: dict[int, float]

    def __post_init__(self) -> None:
        for nodes in self.ddtree:
            if type(nodes) is not int or nodes < 1:
                raise ConfigError(f"predict.lengths.sets ({self.name}).ddtree", nodes, "an integer >= 1: nodes")
        lengths = {"dflash": self.dflash, **{f"ddtree.{nodes}": length for nodes, length in self.ddtree.items()}}
        for where, length in lengths.items():
            if length is not None and not 1 <= length < math.inf:
                raise ConfigError(f"predict.lengths.sets ({self.name}).{where}", length, "tokens a round >= 1")


@dataclass(frozen=True)
class Published:
    """A table of lengths of one ``model``, as ``published_lengths.yaml`` beside this file."""

    model: str
    temperature: float
    depth: int
    sets: tuple[Lengths, ...]

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ConfigError("predict.lengths.depth", self.depth, "an integer >= 1")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError("predict.lengths.temperature", self.temperature, "a number >= 0")
        if not self.sets:
            raise ConfigError("predict.lengths.sets", [], "at least one set of lengths")


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Predicts every set; the summary names ``predicted``, the file, and the best shapes by set.

    Raises:
        ConfigError: a table, a cost file or a setting that cannot be used, two of different models, or no number.
    """
    for name in ("run", "check", "what_if"):
        if config.get(name) not in (None, False):
            raise ConfigError(name, config[name], "nothing with predict.lengths, which takes no recording")
    asked = build(PredictSettings, config.get("predict") or {}, "predict")
    settings = load_settings({key: value for key, value in config.items() if key not in OWN}, run_id)
    table = _table(str(asked.lengths), settings)
    cost, file = cost_of(config)
    check_same_model(settings.model, cost, file)
    folder = Path(settings.output_dir) / settings.name / settings.run_id
    if (folder / "published.json").exists():
        raise ConfigError("run_id", settings.run_id, "a new one: a prediction is made at once")
    check_place("predict.evidence", asked.evidence, "experiment=predict")
    RunFolder(folder).check_writable()
    sizes = batch_sizes_of(config)
    sets = [_told(each, table, cost, sizes, asked, settings) for each in table.sets]
    if not any(each["points"] for each in sets):
        wanted = "sizes that the cost file was measured at, or predict.extrapolate=true: no point has a number"
        raise ConfigError("sweep.batch_size", list(sizes), wanted)
    found = {
        "model": table.model,
        "temperature": table.temperature,
        "context": asked.context,
        "card": asked.card,
        "sets": sets,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.yaml", yaml.safe_dump({**config, "run_id": settings.run_id}, sort_keys=False))
    head = {"predicted": True, "date": datetime.now(UTC).date().isoformat(), "cost": dict(cost.fingerprint)}
    write_whole(folder / "published.json", json.dumps({**head, **found}, indent=1, allow_nan=False) + "\n")
    if asked.evidence is not None:
        keep(asked.evidence, cost, found, NOTES)
    from reports.published_speed import write_published

    report = write_published(folder)
    for each in sets:
        tops = (f"{top['batch_size']}: {top['shape']}" for top in each["best"])
        say(f"PREDICTED best shape by batch size, lengths of {each['name']}: {', '.join(tops)}")
    return {
        "run": str(folder),
        "report": str(report),
        "results": None,
        "cells": dict.fromkeys(FINAL_STATUSES, 0),
        "predicted": str(folder / "published.json"),
        "best": {each["name"]: {top["batch_size"]: top["shape"] for top in each["best"]} for each in sets},
    }


def _table(place: str, settings: Settings) -> Published:
    try:
        data = yaml.safe_load(Path(place).read_text(encoding="utf-8"))
        table = Published(
            str(data["model"]),
            float(data["temperature"]),
            int(data["depth"]),
            tuple(build(Lengths, each, "predict.lengths.sets") for each in data["sets"]),
        )
    except ConfigError:
        raise  # it says which entry, and is a ValueError too
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        raise ConfigError("predict.lengths", place, "a table like experiments/predict/published_lengths.yaml") from None
    if table.model != settings.model.name:
        raise ConfigError("model", settings.model.name, f"{table.model}, which the lengths are of")
    return table


def points(
    lengths: Lengths, table: Published, cost: CostModel, sizes: tuple[int, ...], asked: PredictSettings
) -> list[Predicted]:
    """Every shape of a set at every batch size, with ratios to autoregressive decoding and to the chain."""
    return list(with_ratios(list(_points(lengths, table, cost, sizes, asked))))


def _points(
    lengths: Lengths, table: Published, cost: CostModel, sizes: tuple[int, ...], asked: PredictSettings
) -> Iterator[Predicted]:
    shapes = [(Shape("autoregressive", None, None, None, False, None), 1, 1.0)]
    if lengths.dflash is not None:
        shapes.append((Shape("dflash", None, table.depth, None, False, None), table.depth + 1, lengths.dflash))
    for nodes, length in lengths.ddtree.items():
        shapes.append((Shape("ddtree", None, table.depth, nodes, False, None), nodes + 1, length))
    for shape, width, length in shapes:
        fit = cost.fit(shape.strategy)
        for batch in sizes:
            outside = not inside(fit, width, batch, asked.context)
            point = Predicted(
                shape, width, batch, table.temperature, 0, length, asked.context, None, None, None, None, None, outside
            )
            if asked.extrapolate or not outside:
                ms = float(fit(width, batch, asked.context, extrapolate=True))
                speed = 1e3 * length / ms
                point = replace(point, round_ms=ms, tokens_per_s_per_user=speed, tokens_per_s=batch * speed)
            yield point


def _told(
    lengths: Lengths,
    table: Published,
    cost: CostModel,
    sizes: tuple[int, ...],
    asked: PredictSettings,
    settings: Settings,
) -> dict[str, Any]:
    found = points(lengths, table, cost, sizes, asked)
    there: list[other.Elsewhere] = []
    if asked.card is not None:
        here = other.here(cost.fingerprint.get("device", "unknown"), asked.card)
        model = other.model_of(settings, settings.model.target.revision, str(cost.fingerprint.get("dtype")))
        there = other.elsewhere(found, model, here, asked.card)
    return {
        "name": lengths.name,
        "source": lengths.source,
        "points": [_point(each) for each in found if each.round_ms is not None],
        "best": [
            {
                "batch_size": each.batch_size,
                "shape": name_of(each.shape),
                "tokens_per_s_per_user": round(each.speed, 1),
                "margin_over": {name: round(value, 4) for name, value in each.margin_over.items()},
                "outside": each.extrapolated,
            }
            for each in best(found)
        ],
        "pays": [
            {
                "strategy": each.strategy,
                "stops_paying_at": [round(at, 1) for at, rises in each.crossings if not rises],
                "starts_paying_at": [round(at, 1) for at, rises in each.crossings if rises],
                "pays_at_the_smallest": each.always,
                "largest": max(each.sizes),
                "outside": list(each.extrapolated),
            }
            for each in pays(found)
        ],
        "elsewhere": [_elsewhere(each) for each in there],
    }


def name_of(shape: Shape) -> str:
    """In a word."""
    return shape.strategy if shape.nodes is None else f"{shape.strategy}_{shape.nodes}"


def _point(each: Predicted) -> dict[str, Any]:
    numbers = ("acceptance_length", "round_ms", "tokens_per_s_per_user", "tokens_per_s")
    ratios = ("speedup_vs_autoregressive", "speedup_vs_dflash")
    told = {name: asdict(each)[name] for name in (*numbers, *ratios)}
    rounded = {name: None if value is None else round(value, 3) for name, value in told.items()}
    return {"shape": name_of(each.shape), "batch_size": each.batch_size, **rounded, "outside": each.extrapolated}


def _elsewhere(each: other.Elsewhere) -> dict[str, Any]:
    numbers = {name: round(getattr(each, name), 1) for name in ("stays", "scales", "low", "high")}
    return {"shape": name_of(each.shape), "batch_size": each.batch_size, **numbers, "outside": each.extrapolated}
