"""What a step costs on one setup: read from a cost file, asked in milliseconds.

    cost = load_cost("outputs/step_cost/<run_id>/cost.json")
    cost.round_ms(verify_width=65, batch=8, context=512)      a round of a tree: draft + build + verify + commit

Needs numpy alone: an engine's plug-in reads cost files too. The fit itself is :mod:`ddbench.cost.fit`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ddbench.cost.form import Fit
from ddbench.cost.points import KINDS, Point
from ddbench.errors import ConfigError

SCHEMA = 1
ALLOWED = "a cost file as experiment=step_cost writes it"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CostModel:
    """Fitted costs by kind of step, the points behind them, and the setup that they hold for.

    ``fingerprint``: names of everything that decides a time (GPU, engine, build, models, attention backend, dtype, ...)
    to their values. ``points`` and ``fits`` are by kind, see :data:`ddbench.cost.points.KINDS`; a kind that was not
    measured is in neither. ``source``: how, when and by what it was measured, for a reader.
    """

    fingerprint: Mapping[str, str]
    fits: Mapping[str, Fit]
    points: Mapping[str, tuple[Point, ...]]
    source: Mapping[str, Any]

    def round_ms(
        self, verify_width: ArrayLike, batch: ArrayLike, context: ArrayLike, extrapolate: bool = False
    ) -> Floats:
        """A round of a tree for the whole batch: draft, build, verify and commit.

        Args:
            verify_width: tokens of a sequence in the target's pass: nodes + 1.
            batch: sequences in flight.
            context: committed tokens of a sequence, the mean over the batch.
            extrapolate: answer outside the measured ranges too.

        Raises:
            ConfigError: no tree was measured, or a value outside the measured ranges.
        """
        return self.fit("ddtree")(verify_width, batch, context, extrapolate)

    def chain_ms(
        self, verify_width: ArrayLike, batch: ArrayLike, context: ArrayLike, extrapolate: bool = False
    ) -> Floats:
        """A round of the linear DFlash chain: as :meth:`round_ms`; the verify width is its depth + 1."""
        return self.fit("dflash")(verify_width, batch, context, extrapolate)

    def autoregressive_ms(self, batch: ArrayLike, context: ArrayLike, extrapolate: bool = False) -> Floats:
        """A step of autoregressive decoding, one token of every sequence."""
        return self.fit("autoregressive")(1, batch, context, extrapolate)

    def prefill_ms(self, tokens: ArrayLike, extrapolate: bool = False) -> Floats:
        """Taking in one prompt of so many ``tokens``."""
        return self.fit("prefill")(tokens, 1, 0, extrapolate)

    def step_ms(
        self, strategy: str, verify_width: ArrayLike, batch: ArrayLike, context: ArrayLike, extrapolate: bool = False
    ) -> Floats:
        """The step of a strategy by its name: a round, or one token of autoregressive decoding."""
        return self.fit(strategy)(verify_width, batch, context, extrapolate)

    def fit(self, kind: str) -> Fit:
        """Raises ConfigError where that kind of step was not measured."""
        if kind not in self.fits:
            raise ConfigError("cost", kind, f"a kind of step that the cost file holds: {', '.join(self.fits)}")
        return self.fits[kind]

    def check(self, mine: Mapping[str, str], name: str = "cost") -> None:
        """Is this the cost of the setup ``mine``? Every name that either has must be equal in both.

        Raises:
            ConfigError: it is another's; one line with all that differs.
        """
        names = (*mine, *(key for key in self.fingerprint if key not in mine))
        apart = [
            f"{key} is {self.fingerprint.get(key, 'unknown')} there and {mine.get(key, 'unknown')} here"
            for key in names
            if self.fingerprint.get(key) != mine.get(key)
        ]
        if apart:
            raise ConfigError(name, "another setup's", f"a cost file of this setup ({'; '.join(apart)})")


def load_cost(path: str | Path) -> CostModel:
    """Reads a cost file.

    Raises:
        ConfigError: no file, none of this schema, or one that lacks a part.
    """
    place = Path(path)
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError("cost", str(place), ALLOWED) from None
    return cost_from(data, place)


def cost_from(data: Any, path: str | Path) -> CostModel:
    """What a cost file holds, where its JSON has been read from ``path`` already.

    Raises:
        ConfigError: it is not of this schema, or lacks a part.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise ConfigError("cost", f"{path}, schema {found}", f"{ALLOWED}, schema {SCHEMA}")
    try:
        return CostModel(
            fingerprint={str(key): str(value) for key, value in data["fingerprint"].items()},
            fits={kind: Fit.from_dict(each["fit"]) for kind, each in data["kinds"].items() if kind in KINDS},
            points={
                kind: tuple(map(Point.from_dict, each["points"]))
                for kind, each in data["kinds"].items()
                if kind in KINDS
            },
            source=dict(data["source"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError("cost", str(path), f"{ALLOWED}; this one is damaged ({error!r})") from None
