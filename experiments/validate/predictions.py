"""Predictions written down beforehand, by machine: ``pro6000_predictions.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ddbench.errors import ConfigError
from experiments.typed import build

COMMITTED = Path(__file__).with_name("pro6000_predictions.yaml")


@dataclass(frozen=True)
class Prediction:
    """One line of a verdict: ``key`` says what is measured (:mod:`experiments.validate.measure`).

    A number must lie in [``low``, ``high``], None for no bound; a text must have ``text`` in it. ``origin`` says where
    the figures come from, the arithmetic shown. ``engine``: made for that one alone. ``prompts``: made for a run over
    so many prompts, of so many ``new_tokens`` at most, and worth nothing for another.
    """

    key: str
    origin: str
    low: float | None = None
    high: float | None = None
    text: str | None = None
    engine: str | None = None
    prompts: int | None = None
    new_tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.low is None and self.high is None):
            raise ConfigError("validate.predictions", self.key, "a text, or a lower or an upper bound")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError("validate.predictions", self.key, f"low <= high, not {self.low} > {self.high}")

    @property
    def described(self) -> str:
        """What is predicted, for people."""
        if self.text is not None:
            return self.text
        if self.low == self.high:
            return f"{self.low:g}"
        ends = [f"{sign} {end:g}" for sign, end in ((">=", self.low), ("<=", self.high)) if end is not None]
        return f"{self.low:g} to {self.high:g}" if len(ends) == 2 else ends[0]


@dataclass(frozen=True)
class Plan:
    """What is run for the predictions of a machine; an empty list of batch sizes: nothing."""

    batch_size: tuple[int, ...]
    dtype: str
    prompts: int
    new_tokens: int


@dataclass(frozen=True)
class Machine:
    """``gpu``: a pattern that its GPU's name matches, None for a CPU. ``engines`` that it is predicted for.

    ``tiny`` is the tiny pair, for what is right or wrong; ``rounds`` random weights at the dimensions of a real model,
    for what a round costs, null where nothing is predicted of that.
    """

    name: str
    what: str
    gpu: str | None
    engines: tuple[str, ...]
    tiny: Plan
    rounds: Plan | None
    predictions: tuple[Prediction, ...] = field(default=())

    def __post_init__(self) -> None:
        keys = [each.key for each in self.predictions]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise ConfigError("validate.predictions", twice[0], f"one prediction of {self.name} by that key")


def read_machines(path: Path = COMMITTED) -> dict[str, Machine]:
    """The machines of a predictions file, by name.

    Raises:
        ConfigError: no such file, or one that says what cannot be.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        given: Mapping[str, Any] = data["machines"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError("validate.predictions", str(path), f"a file of predictions ({why})") from None
    return {name: machine_of(name, body) for name, body in given.items()}


def machine_of(name: str, body: Mapping[str, Any]) -> Machine:
    """A machine as the file has it: the dataclasses above, but for ``predictions``, which is a list there."""
    key = f"validate.predictions:{name}"
    lines = tuple(build(Prediction, one, f"{key}.predictions") for one in body.get("predictions", ()))
    rest = {each: value for each, value in body.items() if each != "predictions"}
    found = build(Machine, {**rest, "name": name}, key)
    return Machine(**{**{each: getattr(found, each) for each in Machine.__dataclass_fields__}, "predictions": lines})


def choose(machines: Mapping[str, Machine], name: str | None, gpu: str | None, engine: str) -> Machine | None:
    """The machine that is named, under the engine where it has predictions of its own for it (``<name>_<engine>``);
    else the first that the GPU and the engine match; None where there is none.

    Raises:
        ConfigError: a name that the file does not have.
    """
    if name is not None:
        if name not in machines:
            raise ConfigError("validate.machine", name, f"null (by the GPU's name), or one of {', '.join(machines)}")
        return machines.get(f"{name}_{engine}", machines[name])
    return next((each for each in machines.values() if engine in each.engines and _matches(each.gpu, gpu)), None)


def _matches(pattern: str | None, gpu: str | None) -> bool:
    if pattern is None or gpu is None:
        return pattern is gpu
    return re.search(pattern, gpu) is not None
