"""The predicted surface: every shape at every batch size, from replayed rounds and fitted step times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddbench.cost import CostModel, inside, late_steps, prefill_of
from ddbench.cost.loop import Requests, closed_loop
from ddbench.metrics import verify_width
from ddbench.records import Arm
from experiments.replay.points import Point


@dataclass(frozen=True)
class Shape:
    """What is drafted; axes that a strategy lacks are None."""

    strategy: str
    width: int | None
    depth: int | None
    nodes: int | None
    force_spine: bool
    min_log_prob: float | None

    @classmethod
    def of(cls, arm: Arm) -> Shape:
        return cls(**{name: getattr(arm, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Predicted:
    """One point of the surface; a number that cannot be told is None.

    Attributes:
        acceptance_length: tokens emitted and kept a round, replayed; 1 without speculation.
        context: committed tokens of a sequence when a step begins, mean.
        round_ms: predicted time of a step of the whole batch at that context.
        tokens_per_s_per_user: 1000 x acceptance length / round time: while the batch is full and no prompt is read.
        tokens_per_s: batch size x that.
        loop_tokens_per_s_per_user, loop_tokens_per_s: of the recorded requests in a closed loop, in their order, with
            the reading of prompts (where the cost file has it) and the ramps.
        speedup_vs_autoregressive, speedup_vs_dflash: ratios of ``tokens_per_s_per_user`` at the same batch size.
        extrapolated: the point lies outside of what the cost was measured in.
    """

    shape: Shape
    verify_width: int
    batch_size: int
    temperature: float
    requests: int
    acceptance_length: float | None
    context: float | None
    round_ms: float | None
    tokens_per_s_per_user: float | None
    tokens_per_s: float | None
    loop_tokens_per_s_per_user: float | None
    loop_tokens_per_s: float | None
    extrapolated: bool
    speedup_vs_autoregressive: float | None = None
    speedup_vs_dflash: float | None = None


def requests_of(point: Point) -> Requests:
    """The recorded requests as a shape decodes them."""
    assert point.outcome is not None
    traces = point.traces.traces
    output = np.array([len(trace.output) for trace in traces])
    plain = point.planned.cell.arm.strategy == "autoregressive"
    steps = output - 1 if plain else np.asarray(point.outcome.rounds)
    return Requests(np.array([trace.prompt_tokens for trace in traces]), output, steps)


def surface(points: Sequence[Point], cost: CostModel, batch_sizes: Sequence[int], extrapolate: bool) -> list[Predicted]:
    """All points that can be replayed and whose kind of step was measured, at every batch size."""
    found = [
        _predicted(point, cost, batch, extrapolate)
        for point in points
        if point.outcome is not None and point.planned.cell.arm.strategy in cost.fits
        for batch in batch_sizes
    ]
    return list(with_ratios(found))


def _predicted(point: Point, cost: CostModel, batch: int, extrapolate: bool) -> Predicted:
    cell = point.planned.cell
    shape, requests = Shape.of(cell.arm), requests_of(point)
    width = verify_width(shape.strategy, shape.depth, shape.nodes)
    assert width is not None
    context, fit = requests.mean_context(), cost.fit(shape.strategy)
    steps = int(requests.steps.sum())
    acceptance = float((requests.output_tokens - 1).sum()) / steps if steps else None
    outside = context is not None and not inside(fit, width, batch, context)
    told = context is not None and acceptance is not None and (extrapolate or not outside)
    none = dict.fromkeys(("round_ms", "tokens_per_s_per_user", "tokens_per_s"))
    numbers: dict[str, float | None] = {**none, "loop_tokens_per_s_per_user": None, "loop_tokens_per_s": None}
    if told:
        assert context is not None
        assert acceptance is not None
        ms = float(fit(width, batch, context, extrapolate=True))
        clocks = closed_loop(requests, batch, fit, width, prefill_of(cost), late_steps(cost))
        numbers = {
            "round_ms": ms,
            "tokens_per_s_per_user": 1e3 * acceptance / ms,
            "tokens_per_s": 1e3 * acceptance * batch / ms,
            "loop_tokens_per_s_per_user": clocks.tokens_per_s_per_user(requests),
            "loop_tokens_per_s": clocks.tokens_per_s(requests),
        }
    return Predicted(
        shape, width, batch, cell.temperature, len(requests.steps), acceptance, context, extrapolated=outside, **numbers
    )


def with_ratios(found: Sequence[Predicted]) -> Iterator[Predicted]:
    """Speed-ups over autoregressive decoding and over the deepest chain of the same batch size and temperature."""
    plain = {_place(each): each for each in found if each.shape.strategy == "autoregressive"}
    chains: dict[tuple[int, float], Predicted] = {}
    for each in found:
        known = chains.get(_place(each))
        if each.shape.strategy == "dflash" and (known is None or each.verify_width > known.verify_width):
            chains[_place(each)] = each
    for each in found:
        yield replace(
            each,
            speedup_vs_autoregressive=_ratio(each, plain.get(_place(each))),
            speedup_vs_dflash=_ratio(each, chains.get(_place(each))),
        )


def _place(each: Predicted) -> tuple[int, float]:
    return each.batch_size, each.temperature


def _ratio(one: Predicted, other: Predicted | None) -> float | None:
    if other is None or one.tokens_per_s_per_user is None or other.tokens_per_s_per_user is None:
        return None
    return one.tokens_per_s_per_user / other.tokens_per_s_per_user


def flat(each: Predicted) -> dict[str, Any]:
    """A row of the table: the shape's axes beside the rest; ``predicted`` is always true."""
    own = {name: getattr(each, name) for name in Predicted.__dataclass_fields__ if name != "shape"}
    return {**{name: getattr(each.shape, name) for name in Shape.__dataclass_fields__}, **own, "predicted": True}
