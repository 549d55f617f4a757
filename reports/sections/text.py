"""Numbers and tables as markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from tabulate import tabulate

from reports.statistics import Estimate

NOTHING = "–"
LIVE = re.compile(r"(?<!\\)((?:\\\\)*)<(?=[A-Za-z/!?])")  # a tag's begin behind an even number of backslashes
BAR = re.compile(r"(?<!\\)((?:\\\\)*)\|")
MARKUP = re.compile(r"[\\`*$<|~\[\]]")
FEW = "2 blocks: too few"  # stands for an interval of one degree of freedom that spans more than SPAN times
FEW_BLOCKS = "2 blocks are too few for an interval; load.blocks=3 or more"
SPAN = 10
LONGEST = 60  # characters of a name from a prompt set
NUMERIC = re.compile(rf"{NOTHING}|[\d.\-]+( %)?( \[.*\]| \({FEW}\))?")


def missing(value: Any) -> bool:
    return value is None or value is pd.NA


def number(value: Any, digits: int = 2) -> str:
    return NOTHING if missing(value) else f"{float(value):.{digits}f}"


def interval(row: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """``1.23 [1.10, 1.37]``; the value alone where it has no interval; a dash where there is no value.

    An interval from two blocks (``row["blocks"]``) that says nothing, see :func:`too_wide`, is named so instead.
    """
    return f"{number(row[name], digits)}{_bar(row, name, digits)}"


def times(row: Mapping[str, Any], name: str) -> str:
    """A ratio as ``1.23 [1.10, 1.37]x``; the mark stands behind the value where there is no interval to be told."""
    if missing(row[name]):
        return NOTHING
    bar = _bar(row, name, 2)
    return f"{number(row[name])}x{bar}" if too_wide(row, name) else f"{number(row[name])}{bar}x"


def too_wide(row: Mapping[str, Any], name: str) -> bool:
    """Whether the interval of a ``row`` of two blocks spans more than :data:`SPAN` times.

    Two blocks leave one degree of freedom: t is 12.7 there, so that the interval tells the noise of two numbers.
    """
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if row.get("blocks") != 2 or missing(low) or missing(high):
        return False
    return float(high) > SPAN * float(low) >= 0


def _bar(row: Mapping[str, Any], name: str, digits: int) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    if missing(row[name]) or missing(low) or low == high:
        return ""
    return f" ({FEW})" if too_wide(row, name) else f" [{number(low, digits)}, {number(high, digits)}]"


def bounds(estimate: Estimate, digits: int = 2) -> str:
    """The same of an estimate that is no column."""
    return interval(as_row(estimate), "value", digits)


def as_row(estimate: Estimate) -> dict[str, Any]:
    """An estimate as columns ``value``, ``value_low``, ``value_high``, and ``blocks`` as far as its method tells."""
    two = "t over 2 blocks" in (estimate.method or "")
    ends = {"value": estimate.value, "value_low": estimate.low, "value_high": estimate.high}
    return {**ends, "blocks": 2 if two else None}


def whole(value: Any) -> str:
    return NOTHING if missing(value) else str(int(value))


def share(value: Any) -> str:
    """A share as percent; rounded down, so that 100 % means all."""
    return NOTHING if missing(value) else f"{int(float(value) * 1000) / 10:g} %"


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A pipe table from rows of equal keys, text as given (bars escaped); columns of numbers are set to the right."""
    if not rows:
        return ["None."]
    headers = list(rows[0])
    cells = [[clean(row[header]) for header in headers] for row in rows]
    columns = zip(*cells, strict=True)
    align = ["right" if all(NUMERIC.fullmatch(cell) for cell in column) else "left" for column in columns]
    text: str = tabulate(cells, headers=headers, tablefmt="pipe", colalign=align, disable_numparse=True)
    return text.splitlines()


def clean(value: Any) -> str:
    """One table cell: a line of text, no bar that would end it."""
    return BAR.sub(r"\1\\|", inline(NOTHING if missing(value) else str(value)))


def inline(text: str) -> str:
    """Text from elsewhere as one line of markdown, in which nothing can be taken for an HTML tag."""
    return LIVE.sub(r"\1\\<", " ".join(text.split()))


def literal(value: Any, longest: int | None = None) -> str:
    """Free text (names, reasons) as one line in which nothing is markup; a dash for null; cut at ``longest``."""
    if missing(value):
        return NOTHING
    text = " ".join(str(value).split())
    if longest is not None and len(text) > longest:
        text = f"{text[: longest - 1]}…"
    return MARKUP.sub(r"\\\g<0>", text)


def counted(number: int, noun: str) -> str:
    """``1 prompt``, ``8 prompts``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def folded(summary: str, lines: list[str]) -> list[str]:
    """Lines that GitHub shows on a click."""
    return ["<details>", f"<summary>{summary}</summary>", "", *lines, "", "</details>"]
