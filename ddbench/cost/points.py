"""What was measured: medians of the time of a step, with their spread and, where the engine tells, their parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ddbench.errors import ConfigError

KINDS = ("autoregressive", "dflash", "ddtree", "prefill")
STAGES = ("draft", "build", "verify", "commit")


@dataclass(frozen=True)
class Point:
    """One measured step time.

    Attributes:
        verify_width: tokens of a sequence in the target's pass; of a prefill, the tokens of the prompt.
        batch: sequences that stepped together.
        context: committed tokens of a sequence when a step began, mean over the steps timed; 0 for a prefill.
        ms: median over repeats of the mean time of a step, in milliseconds.
        low, high: fastest and slowest repeat.
        n: repeats.
        stages: milliseconds by stage (draft, build, verify, commit), or None where the engine does not tell them.

    Raises:
        ConfigError: a number that cannot be.
    """

    verify_width: int
    batch: int
    context: float
    ms: float
    low: float
    high: float
    n: int
    stages: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        for name in ("verify_width", "batch", "n"):
            if getattr(self, name) < 1:
                raise ConfigError(name, getattr(self, name), "an integer >= 1")
        for name in ("context", "ms", "low", "high"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(name, value, "a finite number >= 0")
        if not 0 < self.low <= self.ms <= self.high:
            raise ConfigError("ms", (self.low, self.ms, self.high), "0 < low <= median <= high")
        unknown = sorted(set(self.stages or ()) - set(STAGES))
        if unknown:
            raise ConfigError("stages", unknown, f"some of {', '.join(STAGES)}")

    @property
    def tokens(self) -> int:
        """Tokens of the target's pass."""
        return self.verify_width * self.batch

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Point:
        return cls(**data)
