"""The surface on a card that nothing was measured on: by its bandwidth and arithmetic alone, as a range.

A round is a pass through the target and, of a drafter, one over its block; a pass takes at least
``max(bytes / bandwidth, operations / throughput)`` (:mod:`experiments.validate.arithmetic`, docs/pro6000.md). What a
round takes beyond that floor is not known of another card: it stays (launches, the host), or it scales with the floor
(bandwidth never reached in full). Both are told; the truth is expected between them, 15 % beyond either allowed for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddbench.errors import ConfigError
from experiments.predict.surface import Predicted, Shape
from experiments.roofline import roofline
from experiments.settings import Settings
from experiments.validate.arithmetic import TOLERANCE, Card, Work
from experiments.validate.predict import H200, SKUS

KNOWN = {"H200": H200}  # cards that a cost may have been measured on, by a part of their names


@dataclass(frozen=True)
class Elsewhere:
    """A point on the other card. ``stays``, ``scales``: tokens/s per user if the excess over the floor does.

    ``low`` and ``high``: what is expected to hold them. ``extrapolated``: so is the point on the measured card.
    """

    shape: Shape
    batch_size: int
    temperature: float
    floor_here_ms: float
    floor_there_ms: float
    stays: float
    scales: float
    low: float
    high: float
    extrapolated: bool


@dataclass(frozen=True)
class Model:
    """What the passes of a round read and compute. Bytes, and weights for operations: two a weight and token."""

    weight_bytes: float
    weights: float
    drafter_bytes: float
    drafter_weights: float
    block: int
    cache_bytes: float  # of a committed token

    def passes(self, width: int, batch: int, context: float, drafts: bool) -> list[Work]:
        cache = batch * context * self.cache_bytes
        work = [Work(self.weight_bytes + cache, 2.0 * self.weights * batch * width)]
        if drafts:
            work.append(Work(self.drafter_bytes, 2.0 * self.drafter_weights * batch * self.block))
        return work


def here(device: str, wanted: str | None = None) -> Card:
    """The card that a cost was measured on, from which the card ``wanted`` is told.

    Raises:
        ConfigError: none whose bandwidth and arithmetic are known.
    """
    for part, card in KNOWN.items():
        if part in device:
            return card
    allowed = f"null for a cost of {device}: a card is scaled from one of {', '.join(KNOWN)}"
    raise ConfigError("predict.card", wanted, allowed)


def model_of(settings: Settings, revision: str | None, dtype: str) -> Model:
    """From the checkpoint's own header where it is at hand, else from the number of its parameters.

    ``dtype``: of the engine that the cost was measured with, whatever engine ``settings`` name. Of a number of
    parameters the table of input embeddings is part, of which a pass reads a row a token: the floors come out higher
    by its share on both cards alike.
    """
    model = settings.model
    size = 4 if dtype == "float32" else 2
    target, drafter = model.target, model.dflash
    used = target.active_params or target.params
    as_measured = replace(settings, engine=replace(settings.engine, dtype=dtype))
    measured = roofline(as_measured, revision).target_weight_bytes
    return Model(
        weight_bytes=float(measured or size * used),
        weights=(measured / size) if measured else float(used),
        drafter_bytes=float(size * drafter.params) if drafter else 0.0,
        drafter_weights=float(drafter.params) if drafter else 0.0,
        block=(drafter.block_size or 1) if drafter else 1,
        cache_bytes=2.0 * (target.kv_layers or target.layers) * target.kv_heads * target.head_dim * size,
    )


def elsewhere(points: Sequence[Predicted], model: Model, measured_on: Card, card: str) -> list[Elsewhere]:
    """Every predicted point on another card.

    Raises:
        ConfigError: a step was measured faster than the card it was measured on can be with this model.
    """
    there = SKUS[card].card
    found = []
    for point in points:
        if point.round_ms is None or point.context is None or point.acceptance_length is None:
            continue
        drafts = point.shape.strategy != "autoregressive"
        passes = model.passes(point.verify_width, point.batch_size, point.context, drafts)
        floor = _floor(passes, measured_on.bytes_per_s[1], measured_on.flops_per_s[1])
        if point.round_ms < floor:
            step = f"a step of {point.shape.strategy} at batch {point.batch_size} took {point.round_ms:.2f} ms"
            allowed = f"null: {step}, and with the model named here no less than {floor:.2f} ms can be"
            raise ConfigError("predict.card", card, allowed)
        fast = _floor(passes, there.bytes_per_s[1], there.flops_per_s[1])
        slow = _floor(passes, there.bytes_per_s[0], there.flops_per_s[0])
        middle = (fast * slow) ** 0.5
        emitted = 1e3 * point.acceptance_length
        stays, scales = max(middle, middle + point.round_ms - floor), point.round_ms * middle / floor
        shortest = min(fast + point.round_ms - floor, point.round_ms * fast / floor)
        longest = max(slow + point.round_ms - floor, point.round_ms * slow / floor)
        found.append(
            Elsewhere(
                point.shape,
                point.batch_size,
                point.temperature,
                floor_here_ms=floor,
                floor_there_ms=middle,
                stays=emitted / stays,
                scales=emitted / scales,
                low=emitted / ((1 + TOLERANCE) * longest),
                high=emitted / max(fast, (1 - TOLERANCE) * shortest),
                extrapolated=point.extrapolated,
            )
        )
    return found


def _floor(passes: Sequence[Work], bytes_per_s: float, flops_per_s: float) -> float:
    return 1e3 * sum(max(work.bytes / bytes_per_s, work.flops / flops_per_s) for work in passes)


def flat(each: Elsewhere) -> dict[str, Any]:
    own = {name: getattr(each, name) for name in Elsewhere.__dataclass_fields__ if name != "shape"}
    return {**{name: getattr(each.shape, name) for name in Shape.__dataclass_fields__}, **own, "predicted": True}
