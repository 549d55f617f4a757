"""Reasons not to believe a number that is given: a doubtful baseline, text that is not the target's, unequal blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from ddbench.records import STRATEGIES
from reports.aggregate import Analysis
from reports.choose import labelled, usable
from reports.frames import records
from reports.ranking import common
from reports.sections.text import counted, listed, literal, missing, share, whole

FAR = 0.25  # of a lossless share below the control's or the chain's
HALF = 0.5  # lossless share below which text is another's where there is no control; share of ties that explain it
MOST = 3  # arms or reasons named in one note

Row = dict[str, Any]


def notes(analysis: Analysis) -> list[str]:
    """What the first page says of all this, a note each."""
    frame = labelled(analysis.frame)
    return [*_failed(frame), *baselines(frame), *_texts(frame), *_wordless(frame), *_unequal(analysis)]


def headline(frame: pd.DataFrame, winners: list[Row]) -> str:
    """What the answer of a scenario must say at once; empty where there is nothing."""
    names = {row["point_id"] for row in winners}
    texts = [f"**its text is not the target's**: {_told(row)}" for row in strangers(frame) if row["point_id"] in names]
    told = [*(f"{note.partition('.**')[0].strip('*')}" for note in baselines(frame)), *texts]
    return "".join(f" {text[0].upper()}{text[1:]}." if text[0] != "*" else f" Of the winner, {text}." for text in told)


def baselines(frame: pd.DataFrame) -> list[str]:
    """Autoregressive arms that other arms are compared with and that are not to be trusted."""
    used = set(frame[frame["autoregressive_point_id"] != frame["point_id"]]["autoregressive_point_id"].dropna())
    doubtful: dict[str, list[int]] = {}
    for row in records(frame[frame["point_id"].isin(used)]):
        why = (
            literal(row["reason"])
            if row["status"] != "ok"
            else f"{counted(row['errors'], 'request')} ended in an error"
        )
        if row["status"] != "ok" or row["errors"]:
            status = row["status"] if row["status"] != "ok" else "incomplete"
            doubtful.setdefault(f"{status}: {why}", []).append(int(row["batch_size"]))
    return [
        f"**The autoregressive arm at batch size {_sizes(sizes)} is {why}.** Every speed-up over autoregressive "
        "decoding there rests on it."
        for why, sizes in doubtful.items()
    ]


def _wordless(frame: pd.DataFrame) -> list[str]:
    """Points of status ok that are in no ranking for want of a speed, or whose text nobody could look at."""
    done = frame[frame["status"] == "ok"]
    silent = done[done["tokens_per_s_per_user"].isna() & (done["errors"].fillna(0) > 0)]
    unread = done[done["tokens_per_s_per_user"].notna() & done["distinct_4gram_share"].isna()]
    notes = []
    if len(silent):
        notes.append(
            f"**{counted(len(silent), 'point')} of status ok gave no speed ({_arms(silent)}).** Requests of theirs "
            "ended in an error: they are in no ranking."
        )
    if len(unread):
        notes.append(
            f"**The text of {counted(len(unread), 'point')} could not be looked at ({_arms(unread)}).** No token ids "
            "were stored, or too few: neither repetition nor losslessness was checked."
        )
    return notes


def _arms(frame: pd.DataFrame) -> str:
    """The first arms of some points, by label."""
    labels = list(dict.fromkeys(str(label) for label in frame["label"]))
    return ", ".join(labels[:MOST]) + (", ..." if len(labels) > MOST else "")


def strangers(frame: pd.DataFrame) -> list[Row]:
    """Speculative points whose greedy text is not the autoregressive arm's, beyond what ties or a control explain.

    Their lossless share is :data:`FAR` below the control; without one, below :data:`HALF` or as far below the chain's.
    Where half of the divergences or more are known to be ties, rounding explains them.
    """
    shares = dict(zip(frame["point_id"], frame["lossless_share"], strict=True))
    return [
        row
        for row in records(frame[frame["lossless_share"].notna() & (frame["strategy"] != "autoregressive")])
        if row["lossless_share"] < _least(row, shares) and (missing(row["tie_share"]) or row["tie_share"] < HALF)
    ]


def _least(row: Row, shares: dict[Any, Any]) -> float:
    """The lossless share from which on an arm's text passes for the target's."""
    if not missing(row["control_share"]):
        return float(row["control_share"]) - FAR
    chain: Any = shares.get(row["dflash_point_id"])
    return HALF if missing(chain) else max(HALF, float(chain) - FAR)


def _told(row: Row) -> str:
    control = (
        "" if missing(row["control_share"]) else f", of the autoregressive arm's own {share(row['control_share'])}"
    )
    return (
        f"{row['label']} at batch size {whole(row['batch_size'])}, {share(row['lossless_share'])} of "
        f"{counted(row['lossless_n'], 'request')} identical{control}"
    )


def _texts(frame: pd.DataFrame) -> list[str]:
    found = strangers(frame)
    if not found:
        return []
    told = "; ".join(_told(row) for row in found[:MOST])
    more = f"; and {counted(len(found) - MOST, 'point')} more" if len(found) > MOST else ""
    rivals = frame[frame["lossless_share"].notna() & (frame["strategy"] != "autoregressive")]
    every = len(found) == len(rivals) > 1
    whose = " Every speculative arm differs: the autoregressive arm may be the one that is wrong." if every else ""
    return [
        f"**At temperature 0 the text of {counted(len(found), 'point')} is not the target's: {told}{more}.** Their "
        f"speed is that of another text; what is known of it is in the losslessness ledger.{whose}"
    ]


def _failed(frame: pd.DataFrame) -> list[str]:
    """How many points failed, of which strategies, and the commonest reasons."""
    failed = frame[frame["status"] == "failed"]
    if failed.empty:
        return []
    counts = Counter(failed["strategy"])
    order = [name for name in STRATEGIES if name in counts] + sorted(counts.keys() - set(STRATEGIES))
    arms = ", ".join(f"{name} {counts[name]}" for name in order)
    reasons = [literal(reason) for reason, _ in Counter(failed["reason"].dropna()).most_common(MOST)]
    why = f": {'; '.join(reasons)}" if reasons else ""
    return [f"**{counted(len(failed), 'point')} failed ({arms})**{why}. They are in no ranking."]


def _unequal(analysis: Analysis) -> list[str]:
    """Batch sizes at which arms that are ranked did not finish the same requests in the same blocks."""
    shared: dict[bool, list[int]] = {}
    for size, some in _groups(analysis):
        shared.setdefault(some, []).append(size)
    words = {
        True: "They are ranked by their rates on what all of them finished; the tables show each arm's own, over all.",
        False: "They have none in common and are ranked by their own rates: a faster block may have made the winner.",
    }
    return [
        f"**Arms have unequal blocks or requests at batch size {_sizes(sizes)}.** {words[some]}"
        for some, sizes in sorted(shared.items())
    ]


def _groups(analysis: Analysis) -> Iterator[tuple[int, bool]]:
    """(batch size, whether any request is common) of each group of usable points whose requests differ."""
    points = {point.row["point_id"]: point for point in analysis.points}
    for _, group in usable(analysis.frame).groupby(["scenario", "batch_size"], sort=False):
        arms = [points[point_id] for point_id in group["point_id"]]
        if any(set(arm.asked) != set(arms[0].asked) for arm in arms):
            yield int(group["batch_size"].iloc[0]), bool(common(arms))


def _sizes(sizes: list[int]) -> str:
    return listed([str(size) for size in sorted(set(sizes))])
