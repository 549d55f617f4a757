"""The losslessness ledger: which outputs are the target's own, where the others part from them, and how near a tie."""

from __future__ import annotations

from typing import Any

import pandas as pd

from reports.aggregate import Analysis
from reports.frames import records
from reports.sections.text import LONGEST, counted, folded, literal, missing, number, share, table, whole

MOST_DIVERGENCES = 200


def section(frame: pd.DataFrame, analysis: Analysis) -> list[str]:
    """Share of outputs identical to autoregressive decoding at T = 0, where the others part from it, and how near."""
    compared = frame[frame["lossless_share"].notna()]
    if compared.empty:
        return []
    rows = [_row(row) for row in records(compared)]
    held = compared[(compared["lossless_n"] > 0).fillna(False)]  # not an arm against its only answer
    if held.empty:
        return []
    parted = [_row(row) for row in records(held[held["lossless_share"] < 1])]
    return [
        "## Losslessness ledger",
        "",
        "At temperature 0 every arm should emit the target's own tokens. Requests whose token ids equal those of the "
        "autoregressive arm at the same batch size; of the others, the index of the first token that differs, and "
        "the share whose two likeliest tokens were so near in the autoregressive arm that rounding decides. A "
        "control below 100 % means that the engine does not repeat itself either.",
        "",
        f"Every request identical: {len(held) - len(parted)} of {counted(len(held), 'point')}.",
        "",
        *_without_control(compared),
        *([*table(parted), ""] if parted else []),
        *([*folded(f"All {counted(len(rows), 'point')}", table(rows)), ""] if len(rows) > len(parted) else []),
        *_divergences(compared, analysis),
    ]


def _without_control(compared: pd.DataFrame) -> list[str]:
    if compared["control_share"].notna().any():
        return []
    return ["The autoregressive arm answered once, so there is no control: `load.blocks=2` measures one.", ""]


def _row(row: dict[str, Any]) -> dict[str, str]:
    return {
        "Arm": row["label"],
        "Batch size": whole(row["batch_size"]),
        "Identical": share(row["lossless_share"] if row["lossless_n"] else None),
        "n (requests)": whole(row["lossless_n"]),
        "Median first divergence (token)": number(row["first_divergence_median"], 0),
        "of them at a tie": share(row["tie_share"]),
        "Control: autoregressive against itself": share(row["control_share"]),
    }


def _divergences(compared: pd.DataFrame, analysis: Analysis) -> list[str]:
    """Every request that left the autoregressive text."""
    labels = dict(zip(compared["point_id"], compared["label"], strict=True))
    sizes = dict(zip(compared["point_id"], compared["batch_size"], strict=True))
    parted = [row for row in records(analysis.ledger) if row["point_id"] in labels and not missing(row["divergence"])]
    if not parted:
        return []
    rows = [
        {
            "Arm": labels[row["point_id"]],
            "Batch size": whole(sizes[row["point_id"]]),
            "Prompt": literal(row["prompt_id"], LONGEST),
            "Turn": whole(row["turn"]),
            "Block": whole(row["block"]),
            "First divergence (token)": whole(row["divergence"]),
            "Tokens": whole(row["tokens"]),
            "Tokens, autoregressive": whole(row["baseline_tokens"]),
            "Gap of the two likeliest tokens": number(row["gap"], 3),
        }
        for row in parted[:MOST_DIVERGENCES]
    ]
    more = f" (the first {MOST_DIVERGENCES} are shown)" if len(parted) > MOST_DIVERGENCES else ""
    return [*folded(f"Requests that differ: {len(parted)}{more}", table(rows)), ""]
