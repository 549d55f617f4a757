"""Predictions against what was measured: pass, fail or not checked, line by line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from experiments.validate.predictions import Prediction

State = Literal["pass", "fail", "not checked"]
Verdict = Literal["pass", "fail", "incomplete"]


@dataclass(frozen=True)
class Missing:
    """In the place of a measured value: why there is none."""

    reason: str


Value = float | str | Missing


@dataclass(frozen=True)
class Line:
    """``measured`` is null where nothing was; ``reason`` says why a line failed or was not checked."""

    key: str
    state: State
    predicted: str
    measured: float | str | None
    reason: str | None
    origin: str


@dataclass(frozen=True)
class Run:
    """What was measured with: a prediction made for another engine, or another number of prompts, is not checked.

    ``predicted_for``: the engines of the machine whose predictions they are; None: whatever each line says.
    """

    engine: str
    prompts: int
    new_tokens: int
    predicted_for: tuple[str, ...] | None = None


def judge(predictions: Iterable[Prediction], measured: Mapping[str, Value], run: Run) -> list[Line]:
    """One line a prediction, in their order."""
    return [_line(each, measured.get(each.key, Missing("it was not measured")), run) for each in predictions]


def verdict(lines: Iterable[Line]) -> Verdict:
    """``fail`` with a line that failed; ``pass`` with at least one line, all of them passed; else ``incomplete``."""
    states = [line.state for line in lines]
    if "fail" in states:
        return "fail"
    return "pass" if states and set(states) == {"pass"} else "incomplete"


def _line(one: Prediction, value: Value, run: Run) -> Line:
    why = _not_for(one, run)
    if isinstance(value, Missing):
        why = value.reason
    elif isinstance(value, float | int) and not math.isfinite(value):
        why = "what was measured is no finite number"
    if why is not None or isinstance(value, Missing):
        return Line(one.key, "not checked", one.described, None, why, one.origin)
    problem = _problem(one, value)
    return Line(one.key, "fail" if problem else "pass", one.described, value, problem, one.origin)


def _not_for(one: Prediction, run: Run) -> str | None:
    if run.predicted_for is not None and run.engine not in run.predicted_for:
        return f"predicted for {', '.join(run.predicted_for)}, not for {run.engine}"
    if one.engine not in (None, run.engine):
        return f"predicted for {one.engine}, not for {run.engine}"
    if one.prompts not in (None, run.prompts):
        return f"predicted for {one.prompts} prompts, measured on {run.prompts}"
    if one.new_tokens not in (None, run.new_tokens):
        return f"predicted for answers of up to {one.new_tokens} tokens, measured on {run.new_tokens}"
    return None


def _problem(one: Prediction, value: float | str) -> str | None:
    if one.text is not None:
        return None if one.text in str(value) else f"{value!r} has no {one.text!r} in it"
    if isinstance(value, str):
        return f"{value!r} is no number"
    if one.low is not None and value < one.low:
        return f"{value:.4g} is below {one.low:g}"
    if one.high is not None and value > one.high:
        return f"{value:.4g} is above {one.high:g}"
    return None
