"""Step costs of engines that are processes of their own: one engine a kind and verify width, asked in turns."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddbench.cost import Point
from ddbench.errors import ConfigError
from experiments.evidence import dummy_models as dummy
from experiments.evidence.timing import spread
from experiments.progress import say
from experiments.settings import ModelSettings
from experiments.step_cost.grid import Step
from experiments.step_cost.measured import Points
from experiments.step_cost.settings import StepCostSettings
from runners.base import EngineFailure

SPARE_S = 10.0  # before the limit, no further group of steps is begun
PREFILL_OF = "ddtree"  # the kind of engine whose prefill is timed, where there is one
ROUNDED = 0.01  # a number of parameters is told to so much of it

Once = Callable[[str, Step], float]
"""Milliseconds of a step on the engine of a name. Raises EngineFailure where there is no such time."""


def check_dummy(model: ModelSettings) -> None:
    """Random weights are written at one size only.

    Raises:
        ConfigError: the model is of another.
    """
    ours = (dummy.LAYERS, dummy.KV_HEADS, dummy.HEAD, dummy.SHAPE["vocab_size"])
    target, drafter = model.target, model.dflash
    theirs = (target.layers, target.kv_heads, target.head_dim, target.vocab_size)
    same = ours == theirs and target.active_params is None and _near(target.params, dummy.target_parameters())
    if not same or drafter is None or drafter.layers != dummy.DRAFT_LAYERS or drafter.block_size != dummy.BLOCK:
        raise ConfigError("model", model.name, "qwen3_8b: the dimensions at which this engine is given random weights")


def check_dummy_cost(setup: Mapping[str, str], key: str, place: str) -> None:
    """Is a cost's fingerprint that of the random weights, which the round times of all evidence are of?

    Raises:
        ConfigError: it is another model's; ``key`` of the configuration names the evidence file ``place``.
    """
    target, drafter = (setup.get(name, "unknown") for name in ("target", "drafter"))
    words = dummy.SHAPE["vocab_size"]
    shape = rf"(\d+) parameters, {dummy.LAYERS} layers, {dummy.KV_HEADS} kv heads of {dummy.HEAD}, vocabulary {words}"
    ours = re.fullmatch(shape, target)
    theirs = re.fullmatch(rf"(\d+) parameters, {dummy.DRAFT_LAYERS} layers, block {dummy.BLOCK}", drafter)
    found = [(ours, dummy.target_parameters()), (theirs, dummy.drafter_parameters())]
    if not all(match is not None and _near(int(match[1]), params) for match, params in found):
        own = f"of the cost file's model (target: {target}; drafter: {drafter})"
        raise ConfigError(key, place, f"an evidence file {own}, not of Qwen3-8B's dimensions")


def _near(told: int, params: int) -> bool:
    return abs(told / params - 1) <= ROUNDED


def name_of(step: Step) -> str:
    """Of the engine that makes such steps."""
    return step.kind if step.kind == "autoregressive" else f"{step.kind}_{step.verify_width}"


@dataclass(frozen=True)
class Group:
    """Steps that are measured in turns with each other: those of one batch size and context."""

    batch: int
    context: int
    steps: tuple[Step, ...]


def groups(steps: Sequence[Step], batches: Sequence[int]) -> list[Group]:
    """Steps of rounds by batch size and context: the first context first; ends of the batch sizes before the middle."""
    order = halving(sorted(batches))
    contexts = list(dict.fromkeys(step.context for step in steps if step.kind != "prefill"))
    found = []
    for context in contexts:
        for batch in order:
            mine = [s for s in steps if (s.batch, s.context) == (batch, context) and s.kind != "prefill"]
            if mine:
                found.append(Group(batch, context, tuple(mine)))
    return found


def halving(values: Sequence[int]) -> list[int]:
    """Both ends, the middle, the middles of the halves, and so on: whatever ends the work early leaves a wide range."""
    found, spans = list(dict.fromkeys((values[0], values[-1]))), [(0, len(values) - 1)]
    while spans:
        low, high = spans.pop(0)
        middle = (low + high) // 2
        if middle not in (low, high):
            found.append(values[middle])
            spans += [(low, middle), (middle, high)]
    return found


def measure_groups(
    plan: Sequence[Group],
    prefills: Sequence[Step],
    engines: Sequence[str],
    once: Once,
    asked: StepCostSettings,
    ends_at: float,
    save: Callable[[Points], Any],
) -> Points:
    """The points of all groups, saved after each; a first turn of each warms up and is not counted.

    Args:
        engines: names of those that are up.
        ends_at: reading of ``time.perf_counter`` near which no further group is begun.
    """
    points: Points = {}
    reader = next((name for name in engines if name.startswith(PREFILL_OF)), None)
    for step in prefills if reader is not None else ():
        assert reader is not None
        values = _values(once, [(reader, step)], asked.repeats, ends_at)[step]
        if values:
            points.setdefault("prefill", []).append(_point(step, values, 0.0))
    for group in plan:
        mine = [(name_of(step), step) for step in group.steps if name_of(step) in engines]
        if time.perf_counter() + SPARE_S > ends_at:
            say(f"batch {group.batch}, context {group.context}: left out, the time is over")
            continue
        for step, values in _values(once, mine, asked.repeats, ends_at).items():
            if values:
                points.setdefault(step.kind, []).append(_point(step, values, asked.steps / 2))
        line = "  ".join(f"{name} {_last(points, step)}" for name, step in mine)
        say(f"batch {group.batch}, context {group.context}: {line} ms")
        save(points)
    return points


def _values(once: Once, mine: Sequence[tuple[str, Step]], repeats: int, ends_at: float) -> dict[Step, list[float]]:
    """Repeats of each step, ABBA, fewer where the time is short, one at least.

    A step that fails is told of and not asked again.
    """
    lost: set[Step] = set()

    def turn(order: Sequence[tuple[str, Step]]) -> dict[Step, float]:
        values: dict[Step, float] = {}
        for name, step in order:
            if step in lost:
                continue
            try:
                values[step] = once(name, step)
            except EngineFailure as failure:
                say(f"{name} at batch {step.batch}, context {step.context} FAILED: {failure}")
                lost.add(step)
        return values

    began = time.perf_counter()
    turn(mine)
    took = time.perf_counter() - began
    count = max(1, min(repeats, int(min((ends_at - time.perf_counter()) / max(took, 1e-3), 1e6))))
    turns = [turn(mine if number % 2 == 0 else mine[::-1]) for number in range(count)]
    return {step: [each[step] for each in turns if step in each] for _, step in mine}


def _point(step: Step, values: Sequence[float], grown: float) -> Point:
    """``grown``: tokens by which a sequence is longer than its prompt in the middle of what is timed."""
    told = spread(values)
    context = 0.0 if step.kind == "prefill" else step.context + grown
    return Point(
        step.verify_width, step.batch, context, told["median"], told["low"], told["high"], int(told["n"]), None
    )


def _last(points: Points, step: Step) -> str:
    of_kind = points.get(step.kind, [])
    same = [each.ms for each in of_kind if (each.verify_width, each.batch) == (step.verify_width, step.batch)]
    return f"{same[-1]:.3f}" if same else "none"
