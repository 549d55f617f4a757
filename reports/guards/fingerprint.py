"""The fingerprint: what must be equal in two arms for a speed-up between them to be fair.

Three parts make it. :data:`SCENARIO` are columns that ask the same question; an arm's ``flags`` are what its engine was
told (attention backend, page size, overlap scheduling, CUDA graphs, dtype, quantization, tensor parallelism, prefix
cache, template, thinking, arrival rate); :data:`MACHINE` is what was found where it ran. The table in
``docs/guards.md`` says of each part of the definition where it is stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from ddbench.records import content_hash

if TYPE_CHECKING:
    from reports.points import Point

# What must be equal for two points to answer the same question; batch size is an axis inside a scenario.
SCENARIO = (
    "engine",
    "engine_version",
    "host",
    "model",
    "target",
    "target_revision",
    "dataset",
    "prompts_hash",
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
)
# `build`: hash of the engine's own source where it is part of ddbench, else of our plug-in in it, where it was seen.
# `power_limit_w`: see power_limits.
MACHINE = ("build", "gpu", "power_limit_w")


def fingerprint(row: Mapping[str, Any]) -> str:
    """A hash that is equal for two arms exactly where :func:`differing` names nothing."""
    return content_hash([row.get(name) for name in (*SCENARIO, "flags", *MACHINE)])


def differing(point: Point, other: Point) -> list[str]:
    """Names of what differs between the fingerprints of two points: columns, and flags by their own names."""
    ours, theirs = point.row, other.row
    columns = [name for name in (*SCENARIO, *MACHINE) if ours.get(name) != theirs.get(name)]
    mine, its = json.loads(ours["flags"] or "{}"), json.loads(theirs["flags"] or "{}")
    flags = sorted(key for key in mine.keys() | its.keys() if mine.get(key) != its.get(key))
    return [name for name in columns if name in SCENARIO] + flags + [name for name in columns if name in MACHINE]


def power_limits(telemetry: pd.DataFrame) -> dict[str, str]:
    """By cell: the GPU's enforced power limits in watts while it ran, rounded and joined; cells without one are absent.

    A cell whose limit changed under way has both, so that it is compared with no cell of a steady limit.
    """
    samples = telemetry[telemetry["name"] == "gpu_power_limit_w"]
    if samples.empty:
        return {}
    watts = samples["value"].round().astype("Int64")
    return {
        str(cell_id): "; ".join(str(value) for value in sorted(set(values.dropna())))
        for cell_id, values in watts.groupby(samples["cell_id"])
    }
