"""The page of a comparison: what differs, what came of it, and what has no counterpart."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from reports.choose import labelled
from reports.compare.differences import configuration, environment, of_points
from reports.compare.match import Matched, Pair
from reports.compare.measures import MEASURES, UNPAIRED
from reports.frames import Stored
from reports.points import Point
from reports.sections import banners
from reports.sections.text import (
    NOTHING,
    counted,
    folded,
    interval,
    listed,
    literal,
    missing,
    number,
    share,
    table,
    whole,
)

Row = dict[str, Any]
BUILT = "Report built: "


def render(ours: Stored, theirs: Stored, found: Matched, rows: list[Row], built: str) -> str:
    """The whole page; the line that starts with :data:`BUILT` is the only one that differs between two builds."""
    names = _names(ours, theirs)
    labels = _labels([*(pair.ours for pair in found.pairs), *found.only_ours, *found.only_theirs])
    lines = [f"# ddbench comparison: {names[0]} against {names[1]}", ""]
    lines += list(dict.fromkeys(banners.lines(ours) + banners.lines(theirs))) if rows else []
    lines += [f"{BUILT}{built}", "", "## The answer", "", *_answer(names, rows, found), ""]
    lines += ["## What differs", "", *_differs(ours, theirs, found), ""]
    lines += ["## Points of both runs", "", *_pairs(rows, found.pairs, labels), ""]
    lines += ["## Points of one run only", "", *_alone(names, found, labels), ""]
    return "\n".join([*lines, *_method()]).rstrip() + "\n"


def _names(ours: Stored, theirs: Stored) -> tuple[str, str]:
    """What the page calls the two runs: experiment and id; where these are equal the folders as given."""
    names = _name(ours), _name(theirs)
    return names if names[0] != names[1] else (str(ours.run), str(theirs.run))


def _name(stored: Stored) -> str:
    run = stored.run.resolve()
    return f"{run.parent.name}/{run.name}"


def _labels(points: list[Point]) -> dict[str, str]:
    """Names of the arms, alike for both runs."""
    frame = pd.DataFrame([{**point.row, "scenario": "", "fingerprint": ""} for point in points]).convert_dtypes()
    return {} if frame.empty else dict(zip(frame["point_id"], labelled(frame)["label"], strict=True))


def _answer(names: tuple[str, str], rows: list[Row], found: Matched) -> list[str]:
    if not found.pairs:
        return ["The runs have no point in common: nothing is compared."]
    verdicts = Counter(str(row["verdict"]) for row in rows if not missing(row["verdict"]))
    words = [f"{name} at {verdicts[name]}" for name in ("faster", "slower", "not distinguishable") if verdicts[name]]
    bare = len(rows) - sum(verdicts.values())
    words += [f"without a verdict at {bare}"] if bare else []
    ratios = sorted(float(row["decode_speed_ratio"]) for row in rows if not missing(row["decode_speed_ratio"]))
    others = sum("prompts_hash" in pair.differs for pair in found.pairs)
    where = f" (with other prompts at {others} of them: not the same questions)" if others else ""
    middle = f", ratios from {number(ratios[0])} to {number(ratios[-1])}" if ratios else ""
    return [
        f"**Of {counted(len(rows), 'point')} that both runs have{where}, {names[0]} was {listed(words)} in decode "
        f"tokens/s per user{middle}.** The runs were not interleaved: what changed on a machine between them is part "
        "of every ratio, and no interval on this page has it.",
        *_one_start(rows, found),
    ]


def _one_start(rows: list[Row], found: Matched) -> list[str]:
    """What a verdict from one block each leaves out."""
    single = [_single(pair) and _told(row) for row, pair in zip(rows, found.pairs, strict=True)]
    if not any(single):
        return []
    return [
        "",
        f"{counted(sum(single), 'verdict')} of faster or slower rest on one block of repetition in each run: what "
        "differs between two starts of the same arm is not in the interval (`load.blocks=3` in both runs measures it).",
    ]


def _single(pair: Pair) -> bool:
    """Whether either run measured the point in one block."""
    return min(len(pair.ours.blocks), len(pair.theirs.blocks)) == 1


def _told(row: Row) -> bool:
    return row["verdict"] in ("faster", "slower")


def _differs(ours: Stored, theirs: Stored, found: Matched) -> list[str]:
    lines = [*table(of_points(found.pairs)), ""] if found.pairs else []
    for title, rows in (
        ("Environment (environment.json)", environment(ours, theirs)),
        ("Configuration (config.yaml)", configuration(ours, theirs)),
    ):
        lines += [*folded(f"{title}: {counted(len(rows), 'difference')}", table(rows)), ""]
    return lines


def _pairs(rows: list[Row], pairs: list[Pair], labels: dict[str, str]) -> list[str]:
    shown = [
        {
            "Arm": labels[row["point_id"]],
            "Workload": literal(f"{row['dataset']}, T = {row['temperature']:g}"),
            "Batch size": whole(row["batch_size"]),
            "Tokens/s per user": number(row["tokens_per_s_per_user"], 1),
            "against": number(row["tokens_per_s_per_user_against"], 1),
            "Ratio": interval(row, "decode_speed_ratio"),
            "Verdict": _verdict(row) + (", starts not in the interval" if _single(pair) and _told(row) else ""),
            "n (prompts)": whole(row["prompts"]),
            "Acceptance, ratio": interval(row, "acceptance_ratio"),
            "Round time, ratio": interval(row, "round_time_ratio"),
            "Same output": share(row["same_output_share"]),
        }
        for row, pair in zip(({**row, **_blocks(row)} for row in rows), pairs, strict=True)
    ]
    if not shown:
        return ["None."]
    methods = sorted({str(row["method"]) for row in rows if not missing(row["method"])})
    kinds = f" Intervals (95 %): {'; '.join(methods)}." if methods else ""
    return [*table(shown), "", f"Decode speed = acceptance / round time, so the ratios multiply likewise.{kinds}"]


def _blocks(row: Row) -> Row:
    """Two blocks as a column, where the row's method says so; see :func:`reports.sections.text.too_wide`."""
    return {"blocks": 2} if "t over 2 blocks" in str(row["method"]) else {}


def _verdict(row: Row) -> str:
    if not missing(row["verdict"]):
        return str(row["verdict"])
    bad = dict.fromkeys(status for status in (row["status"], row["status_against"]) if status != "ok")
    return " and ".join(bad) or "no interval"


def _alone(names: tuple[str, str], found: Matched, labels: dict[str, str]) -> list[str]:
    rows = [
        {
            "Run": name,
            "Arm": labels[point.row["point_id"]],
            "Workload": literal(f"{point.row['dataset']}, T = {point.row['temperature']:g}"),
            "Batch size": whole(point.row["batch_size"]),
            "Status": point.row["status"],
        }
        for name, points in zip(names, (found.only_ours, found.only_theirs), strict=True)
        for point in points
    ]
    return table(rows)


def _method() -> list[str]:
    columns = ", ".join(f"`{ratio.name}`" for ratio in MEASURES.values())
    return [
        "## How this was made",
        "",
        "Points are the same where strategy, shape, model, workload, batch size, limit and sampling are; what else "
        f"differs is listed above. Every ratio is the first run's value over the second's, of {columns} as defined in "
        "the runs' own reports. Where both runs had the same prompts (`prompts_hash`), ratios are paired by prompt "
        f"and turn over all blocks of both; otherwise they are marked *{UNPAIRED}* and each end of the "
        "interval adds both arms' own distances in squares, of logarithms. Not distinguishable: the interval "
        "includes 1. Same output: share of the shared prompts whose answers have the same tokens, at temperature 0. "
        f"{NOTHING} is a value that does not exist.",
    ]
