"""What a measurement of any engine gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddbench.cost import Point

Points = dict[str, list[Point]]  # by kind


@dataclass(frozen=True)
class Measured:
    """``fingerprint``: the setup; ``source``: how it was measured, for a reader."""

    fingerprint: Mapping[str, str]
    points: Points
    source: Mapping[str, Any]
