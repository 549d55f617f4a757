"""Numbers and tables as markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from tabulate import tabulate

from reports.statistics import Estimate

NOTHING = "–"
TAG = re.compile(r"<(?=[A-Za-z/!?])")
NUMERIC = re.compile(rf"{NOTHING}|[\d.\-]+( %)?( \[.*\])?")


def missing(value: Any) -> bool:
    return value is None or value is pd.NA


def number(value: Any, digits: int = 2) -> str:
    return NOTHING if missing(value) else f"{float(value):.{digits}f}"


def interval(row: Mapping[str, Any], name: str, digits: int = 2) -> str:
    """``1.23 [1.10, 1.37]``; the value alone where it has no interval; a dash where there is no value."""
    if missing(row[name]):
        return NOTHING
    value, low, high = (number(row[f"{name}{end}"], digits) for end in ("", "_low", "_high"))
    no_bar = missing(row[f"{name}_low"]) or row[f"{name}_low"] == row[f"{name}_high"]
    return value if no_bar else f"{value} [{low}, {high}]"


def bounds(estimate: Estimate, digits: int = 2) -> str:
    """The same of an estimate that is no column."""
    return interval({"value": estimate.value, "value_low": estimate.low, "value_high": estimate.high}, "value", digits)


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
    return inline(NOTHING if missing(value) else str(value)).replace("|", "\\|")


def inline(text: str) -> str:
    """Text from elsewhere as one line of markdown, in which nothing can be taken for an HTML tag."""
    return TAG.sub(r"\\<", " ".join(text.split()))


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
