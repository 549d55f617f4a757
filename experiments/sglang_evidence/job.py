"""What every shard is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """``arms`` and ``batches`` None: those of the shard. ``limit_s``: seconds in which it is to end, starts included.

    ``restart``: which start of the same engines this is, from 1. ``prompts``: the shipped ones as tokens. ``save``
    writes what has been measured so far.
    """

    shard: str
    python: str
    assets: Path
    prompts: list[list[int]]
    dtype: str
    arms: list[str] | None
    batches: list[int] | None
    gpus: int
    restart: int
    logs: Path
    limit_s: float
    save: Callable[[dict[str, Any]], None]
