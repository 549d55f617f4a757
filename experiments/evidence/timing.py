"""Medians over interleaved repeats, with the range that a reader needs to judge them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

MOST_REPEATS, REPEAT_S = 7, 25.0  # repeats of a batch size: as many as that many seconds allow, 3 at least


def interleaved(names: Sequence[str], repeats: int) -> list[list[str]]:
    """Orders of measurement: forwards, backwards, forwards ... (ABBA), so that a drift falls on all alike."""
    return [list(names) if turn % 2 == 0 else list(reversed(names)) for turn in range(repeats)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, range and quartiles (medians of the halves) of a few repeats."""
    ordered = sorted(values)
    middle = [statistics.median(half) for half in (ordered[: (len(ordered) + 1) // 2], ordered[len(ordered) // 2 :])]
    return {
        "median": round(statistics.median(values), 4),
        "low": round(ordered[0], 4),
        "high": round(ordered[-1], 4),
        "q1": round(middle[0], 4),
        "q3": round(middle[1], 4),
        "n": len(values),
    }


def kept(values: Sequence[float]) -> dict[str, Any]:
    """`spread`, and the repeats themselves, which :func:`pooled` wants."""
    return {**spread(values), "values": [round(value, 5) for value in values]}


def pooled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One spread over the repeats of several starts, each of which :func:`kept` them; one start may be a mere spread.

    Raises:
        ValueError: several starts, and one that did not keep its repeats.
    """
    if len(rows) == 1:
        one = {key: value for key, value in rows[0].items() if key != "values"}
        return {**one, "starts": 1}
    if not all("values" in row for row in rows):
        raise ValueError("starts without their repeats cannot be pooled")
    return {**spread([value for row in rows for value in row["values"]]), "starts": len(rows)}


def repeats_for(seconds: float) -> int:
    """Repeats of a turn over all arms that takes ``seconds``: fewer of long ones, 3 to MOST_REPEATS."""
    return max(3, min(MOST_REPEATS, int(REPEAT_S / max(seconds, 1e-3))))
