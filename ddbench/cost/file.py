"""Cost files: JSON with the points, their fits and how well these tell them, for one setup.

Written once, whole or not at all; the fit is made when the file is. Layout, schema 1::

    {"schema": 1,
     "fingerprint": {"gpu": ..., "engine": ..., ...},            all text
     "source": {"how": ..., "command": ..., "date": ..., ...},   for a reader
     "kinds": {"ddtree": {"points": [...], "fit": {...}, "residuals": [...], "left_out": [...], "error": {...}}, ...}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddbench.cost.fit import fit_points, quality_of
from ddbench.cost.model import SCHEMA, CostModel, load_cost
from ddbench.cost.points import KINDS, Point
from ddbench.errors import ConfigError
from ddbench.storage import write_whole


def save_cost(
    path: Path,
    fingerprint: Mapping[str, str],
    points: Mapping[str, Sequence[Point]],
    source: Mapping[str, Any],
) -> CostModel:
    """Fits the points of every kind, writes the file and reads it again.

    Raises:
        ConfigError: no points, or a kind that there is not.
    """
    unknown = sorted(set(points) - set(KINDS))
    if unknown:
        raise ConfigError("points", unknown[0], f"one of {', '.join(KINDS)}")
    measured = {kind: points[kind] for kind in KINDS if points.get(kind)}
    if not measured:
        raise ConfigError("points", 0, "at least one measured point")
    data = {
        "schema": SCHEMA,
        "fingerprint": dict(fingerprint),
        "source": dict(source),
        "kinds": {kind: _kind(each) for kind, each in measured.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    return load_cost(path)


def copy_cost(path: Path, model: CostModel) -> None:
    """Writes a model as it is, for who must reckon with the very same: its fits are not made anew, so that
    :func:`load_cost` of the file is equal to ``model``. How well they tell the points is not in such a file."""
    kinds = {
        kind: {"points": [point.to_dict() for point in model.points[kind]], "fit": fit.to_dict()}
        for kind, fit in model.fits.items()
    }
    told = {"fingerprint": dict(model.fingerprint), "source": dict(model.source), "kinds": kinds}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"schema": SCHEMA, **told}, indent=1, allow_nan=False) + "\n")


def _kind(points: Sequence[Point]) -> dict[str, Any]:
    fit = fit_points(points)
    quality = quality_of(fit, points)
    return {
        "points": [point.to_dict() for point in points],
        "fit": fit.to_dict(),
        "residuals": [round(each, 5) for each in quality.residuals],
        "left_out": [None if each is None else round(each, 5) for each in quality.left_out],
        "error": quality.summary(),
    }
