"""Degenerate outputs: text that repeats itself, is far longer than the baseline's, or never ends."""

from __future__ import annotations

import pandas as pd

from reports.frames import records
from reports.sections.text import counted, folded, number, share, table, whole


def section(frame: pd.DataFrame) -> list[str]:
    """Signs of text that repeats itself: easy to draft, fast, and worth nothing."""
    frame = frame[frame["distinct_4gram_share"].notna()]
    if frame.empty:
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
            "Degenerate because": row["degenerate_reason"],
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
        *folded(f"Degeneracy of {counted(len(frame), 'point')}", table(rows)),
        "",
    ]
