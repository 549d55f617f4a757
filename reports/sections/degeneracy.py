"""Degenerate outputs: text that repeats itself, is far longer than the baseline's, or never ends."""

from __future__ import annotations

import pandas as pd

from reports.frames import records
from reports.guards.random_weights import has_random_weights
from reports.sections.text import counted, folded, literal, number, share, table, whole


def section(frame: pd.DataFrame) -> list[str]:
    """Signs of text that repeats itself: easy to draft, fast, and worth nothing."""
    measured = frame[frame["requests"].fillna(0) > 0]
    frame = measured[measured["distinct_4gram_share"].notna()]
    if measured.empty:
        return []
    rows = [
        {
            "Arm": row["label"],
            "Batch size": whole(row["batch_size"]),
            "T": number(row["temperature"], 1),
            "Distinct 4-grams": share(row["distinct_4gram_share"]),
            "Compression ratio": number(row["compression_ratio"]),
            "Length, x autoregressive": number(row["length_ratio_vs_autoregressive"]),
            "Ended by a stop token": share(row["finish_stop_share"]),
            "Degenerate because": literal(row["degenerate_reason"]),
        }
        for row in records(frame)
    ]
    bad = int(frame["degenerate_reason"].notna().sum())
    return [
        "## Degenerate outputs",
        "",
        f"Text that repeats itself is drafted easily: an arm whose outputs degenerate is suspect. Here: {bad} of "
        f"{counted(len(frame), 'point')}.",
        "",
        *_unjudged(measured, frame),
        *folded(f"Degeneracy of {counted(len(frame), 'point')}", table(rows)),
        "",
    ]


def _unjudged(measured: pd.DataFrame, judged: pd.DataFrame) -> list[str]:
    """What could not be judged: random weights, arms without text, and arms with nothing to be held against."""
    lines = []
    random = judged["flags"].map(has_random_weights).astype(bool)
    if random.any():
        lines += [
            f"{counted(int(random.sum()), 'point')} not judged: random weights (`--load-format dummy`). What they "
            "write means nothing, nor do acceptance and tokens/s that follow from it; times of a round do.",
            "",
        ]
        judged = judged[~random]
    without = len(measured) - len(judged)
    if without:
        lines += [
            f"{counted(without, 'point')} could not be judged: no token ids stored, or answers of a few tokens.",
            "",
        ]
    itself = judged["autoregressive_point_id"].notna() & (judged["autoregressive_point_id"] == judged["point_id"])
    alone = int((judged["degeneracy_baseline"].isna() & ~itself.fillna(False)).sum())
    if alone:
        lines += [
            f"{counted(alone, 'point')} could not be judged beside a baseline: no autoregressive arm has the same "
            "settings, and there are fewer than two other arms; only text that repeats itself everywhere is found.",
            "",
        ]
    return lines
