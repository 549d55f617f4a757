"""The losslessness ledger: where greedy outputs leave those of autoregressive decoding, and how near a tie that was.

At temperature 0 every strategy must emit the target's own tokens. Where it does not, the first differing index tells
whether rounding can be the cause: the distance between the target's best and second best token there is small at a tie,
and large where something is wrong. The autoregressive arm held against its own repeats is the control: what two runs of
one arm differ by, no speculative arm can be blamed for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reports import baselines
from reports.columns import LEDGER, framed
from reports.frames import Stored, flag

if TYPE_CHECKING:
    from reports.points import Point

# Largest gap that counts as a tie. Logits of 16 to 32 are 0.125 apart in bfloat16 and 0.016 in float16, and an error of
# a few such steps comes together over the layers; in float32 what adds up stays below a thousandth.
TIE_GAP = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}

Answer = tuple[Any, ...]  # (prompt_id, turn, block, repeat)


def ledger(stored: Stored, points: list[Point]) -> pd.DataFrame:
    """One row a request at temperature 0 that can be held against autoregressive decoding (:data:`LEDGER`).

    ``divergence`` is the first index at which the token ids differ, an end counting as a difference; null: identical.
    ``gap`` is the difference of log-probabilities between the baseline's best and second best token at that index;
    null where the engine gave none. A request is held against the baseline's first answer to the same prompt and turn;
    those first answers themselves have no row, so that the rows of the autoregressive arm are its control.
    """
    rows: list[dict[str, object]] = []
    for point in points:
        baseline = _baseline(point, points)
        if baseline is not None:
            rows += _rows(point, baseline)
    return framed(rows, LEDGER)


def summaries(frame: pd.DataFrame, points: list[Point]) -> dict[str, dict[str, Any]]:
    """By point: the columns of ``results.parquet`` that the ledger gives it; none where it was not compared.

    ``lossless_share``: identical share of the ``lossless_n`` requests compared, null where none was.
    ``first_divergence_median``: over those that differ. ``tie_share``: of the divergences whose gap is known, the share
    with a gap of at most :data:`TIE_GAP` of the arm's dtype; null without. ``control_share``: identical share of the
    autoregressive arm against itself, null where it answered once only.
    """
    rows = dict(iter(frame.groupby("point_id")))
    columns = {}
    for point in points:
        baseline = _baseline(point, points)
        if baseline is not None:
            name, control = point.row["point_id"], rows.get(baseline.row["point_id"], frame.iloc[:0])
            columns[str(name)] = _summary(rows.get(name, frame.iloc[:0]), control, point)
    return columns


def _summary(own: pd.DataFrame, control: pd.DataFrame, point: Point) -> dict[str, Any]:
    apart, gaps = own["divergence"].dropna(), own["gap"].dropna()
    limit = TIE_GAP.get(str(flag(point.row["flags"], "dtype")))
    return {
        "lossless_share": _identical(own),
        "lossless_n": len(own),
        "first_divergence_median": float(apart.median()) if len(apart) else None,
        "tie_share": float((gaps <= limit).mean()) if len(gaps) and limit is not None else None,
        "control_share": _identical(control),
    }


def _identical(rows: pd.DataFrame) -> float | None:
    return float(rows["divergence"].isna().mean()) if len(rows) else None


def _baseline(point: Point, points: list[Point]) -> Point | None:
    """What a greedy point is held against."""
    if not point.measured or point.row["temperature"] != 0:
        return None
    return baselines.find(point, points, "autoregressive")[0]


def first_divergence(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """First index at which two sequences differ, the shorter one's end counting as a difference; None: identical."""
    mine, its = np.asarray(ours, dtype=np.int64), np.asarray(theirs, dtype=np.int64)
    shared = min(len(mine), len(its))
    apart = np.flatnonzero(mine[:shared] != its[:shared])
    if len(apart):
        return int(apart[0])
    return None if len(mine) == len(its) else shared


def _rows(point: Point, baseline: Point) -> list[dict[str, object]]:
    first: dict[Answer, Answer] = {}
    for key in sorted(_answers(baseline), key=lambda key: key[2:]):
        first.setdefault(key[:2], key)
    theirs, gaps = _answers(baseline), _gaps(baseline)
    rows: list[dict[str, object]] = []
    for key, ids in _answers(point).items():
        reference = first.get(key[:2])
        if reference is None or (point is baseline and key == reference):
            continue
        index = first_divergence(ids, theirs[reference])
        rows.append(
            {
                "point_id": point.row["point_id"],
                **dict(zip(("prompt_id", "turn", "block", "repeat"), key, strict=True)),
                "divergence": index,
                "baseline_tokens": len(theirs[reference]),
                "tokens": len(ids),
                "gap": None if index is None else _at(gaps.get(reference), index),
            }
        )
    return rows


def _answers(point: Point) -> dict[Answer, Any]:
    return _by_answer(point, "output_token_ids")


def _gaps(point: Point) -> dict[Answer, Any]:
    return _by_answer(point, "output_gaps") if "output_gaps" in point.requests else {}


def _by_answer(point: Point, column: str) -> dict[Answer, Any]:
    keys = point.requests[["prompt_id", "turn", "block", "repeat"]].itertuples(index=False, name=None)
    return {key: value for key, value in zip(keys, point.requests[column], strict=True) if value is not None}


def _at(gaps: Any, index: int) -> float | None:
    """The gap at an index; None where the list ends before it, or holds none there (null, NaN once in numpy)."""
    if gaps is None or index >= len(gaps) or gaps[index] is None or np.isnan(gaps[index]):
        return None
    return float(gaps[index])
