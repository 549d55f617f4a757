"""From measured points to a fitted cost: least squares of relative errors under the signs that make it convex.

All parameters of the form in :mod:`ddbench.cost.form` enter linearly and none may be negative, so the fit is a
non-negative least squares problem with one optimum (:func:`scipy.optimize.nnls`). Every measured number of tokens is
offered as a knot: with slopes of one sign the hinges can only bend upwards, so that noise cannot be followed (convex
regression); most slopes come out as 0. A term whose axis was not varied is left out rather than guessed.

A kernel that steps (a tile of a matrix product more, another graph) makes a true cost that is not convex. It is not
smoothed away in silence: it stands in the residuals, which are stored with the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from ddbench.cost.form import Fit, Hinges, Range
from ddbench.cost.points import Point
from ddbench.errors import ConfigError

Floats = NDArray[np.float64]

RIDGE = 1e-4  # weight of each normalised parameter beside the points': decides only what the points leave open
VARIED = 1.05  # an axis whose largest value is less than so many times its smallest was not varied


@dataclass(frozen=True)
class Quality:
    """How well a fit tells its own points: relative errors, (fitted - measured) / measured, in the points' order.

    ``left_out``: of a fit to all other points; None where a kind has one point alone. At the ends of a range it says
    how well the fit goes beyond what it has seen.
    """

    residuals: tuple[float, ...]
    left_out: tuple[float | None, ...]

    def summary(self) -> dict[str, float | None]:
        """Median and worst of both, without sign."""
        inside = np.abs(self.residuals)
        outside = np.abs([each for each in self.left_out if each is not None])
        return {
            "median_residual": float(np.median(inside)),
            "worst_residual": float(inside.max()),
            "median_left_out": float(np.median(outside)) if len(outside) else None,
            "worst_left_out": float(outside.max()) if len(outside) else None,
        }


def fit_points(points: Sequence[Point]) -> Fit:
    """The fit of one kind of step.

    Raises:
        ConfigError: no points.
    """
    if not points:
        raise ConfigError("points", 0, "at least one measured point")
    width, rows, context, ms = _columns(points)
    tokens = width * rows
    token_knots = _knots(tokens)
    row_knots = _knots(rows) if _varies(width) else []  # at one width, rows say the same as tokens
    reads = [rows * context] if _varies(context) else []
    reads += [tokens * context] if _varies(context) and _varies(width) else []
    reads += [context] if _varies(context) and _varies(rows) else []
    parts = [np.ones_like(ms)]
    parts += [np.maximum(0.0, tokens - knot) for knot in token_knots]
    parts += [np.maximum(0.0, rows - knot) for knot in row_knots]
    found = iter(_solve(np.stack(parts + reads, axis=1), ms).tolist())
    base = next(found)
    return Fit(
        base=base,
        tokens=_hinges(token_knots, [next(found) for _ in token_knots]),
        rows=_hinges(row_knots, [next(found) for _ in row_knots]),
        row_context=next(found, 0.0),
        token_context=next(found, 0.0) if _varies(width) else 0.0,
        context_alone=next(found, 0.0),
        measured=Range(*(_ends(each) for each in (width, rows, context, tokens))),
    )


def quality_of(fit: Fit, points: Sequence[Point]) -> Quality:
    """Residuals of a fit, and the errors of fits that each leave one point out."""
    width, rows, context, ms = _columns(points)
    residuals = fit(width, rows, context, extrapolate=True) / ms - 1
    left_out: list[float | None] = []
    for place, point in enumerate(points):
        others = [*points[:place], *points[place + 1 :]]
        if not others:
            left_out.append(None)
            continue
        told = fit_points(others)(point.verify_width, point.batch, point.context, extrapolate=True)
        left_out.append(float(told) / point.ms - 1)
    return Quality(tuple(residuals.tolist()), tuple(left_out))


def _solve(design: Floats, ms: Floats) -> Floats:
    """Parameters >= 0 that minimise the sum of squared relative errors; [parameters]."""
    relative = design / ms[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    matrix = np.vstack((relative / scale, RIDGE * np.eye(design.shape[1])))
    wanted = np.concatenate((np.ones(len(ms)), np.zeros(design.shape[1])))
    found: Any = nnls(matrix, wanted, maxiter=100 * design.shape[1])[0]
    solved: Floats = np.asarray(found, dtype=np.float64) / scale
    return solved


def _columns(points: Sequence[Point]) -> tuple[Floats, Floats, Floats, Floats]:
    names = ("verify_width", "batch", "context", "ms")
    width, rows, context, ms = (np.array([getattr(each, name) for each in points], dtype=float) for name in names)
    return width, rows, context, ms


def _knots(values: Floats) -> list[float]:
    """Where a hinge may bend: every measured value but the last, behind which nothing was seen."""
    found: list[float] = np.unique(values)[:-1].tolist()
    return found


def _varies(values: Floats) -> bool:
    return bool(values.max() > VARIED * values.min())


def _hinges(knots: Sequence[float], slopes: Sequence[float]) -> Hinges:
    kept = [(knot, slope) for knot, slope in zip(knots, slopes, strict=True) if slope > 0.0]
    return Hinges(tuple(knot for knot, _ in kept), tuple(slope for _, slope in kept))


def _ends(values: Floats) -> tuple[float, float]:
    return float(values.min()), float(values.max())
