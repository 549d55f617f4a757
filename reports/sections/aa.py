"""The section of a run that measured one arm against itself."""

from __future__ import annotations

from reports.aa import FalsePositives, blocks_each, false_positives
from reports.aggregate import Analysis
from reports.frames import Stored
from reports.sections.text import table

NOMINAL = 0.05
ENOUGH = 60  # pairs; with fewer a rate of 5 % is hardly told from one of 20 %


def section(stored: Stored, analysis: Analysis) -> list[str]:
    """How often the intervals were wrong; no line for any other run."""
    blocks = blocks_each(stored)
    if blocks is None:
        return []
    found = false_positives(stored, analysis.points)
    lines = ["## A/A: one arm against itself", ""]
    if found is None:
        return [
            *lines,
            "Fewer than two pairs can be compared: nothing is known of false positives.",
            "",
        ]
    rows = [
        {"": "Intervals that exclude 1", "Pairs": _of(found.false_positives, found), "Rate": _percent(found.rate)},
        {
            "": "Sign tests with p < 0.05",
            "Pairs": _of(found.sign_test_false_positives, found),
            "Rate": _percent(found.sign_test_rate),
        },
    ]
    mean = f"{found.mean_ratio:.4f} [{found.mean_ratio_low:.4f}, {found.mean_ratio_high:.4f}]"
    each = "1 block" if blocks == 1 else f"{blocks} blocks"
    return [
        *lines,
        f"The same arm was measured {2 * found.pairs} times in {each} each, and its measurements compared two by two, "
        f"as two arms of a sweep with `load.blocks={blocks}` are: every difference is a false one.",
        "",
        f"**False-positive rate: {_percent(found.rate)} [{_percent(found.low)}, {_percent(found.high)}]** "
        f"({found.pairs} pairs; exact 95 % interval). {_reading(found)}{_few(found)}",
        "",
        *table(rows),
        "",
        f"Two measurements differ by {_percent(found.log_sd)} (standard deviation of the logarithm of their ratio); "
        f"the ratio is {mean} on average (t interval over pairs).",
        "",
    ]


def _reading(found: FalsePositives) -> str:
    if found.low > NOMINAL:
        return (
            "**That is more than the 5 % that 95 % intervals promise:** measurements of this arm differ by more than "
            "its prompts show, as between two moments or two starts. Intervals of `load.blocks=3` or more see that."
        )
    if found.high < NOMINAL:
        return "That is less than the 5 % that 95 % intervals promise: they are wider than need be."
    return "That agrees with the 5 % that 95 % intervals promise."


def _few(found: FalsePositives) -> str:
    if found.pairs >= ENOUGH:
        return ""
    return (
        f" **But {found.pairs} pairs say little:** with fewer than {ENOUGH} a rate of 5 % is hardly told from one of "
        f"20 % (`aa_check.pairs={ENOUGH}` or more)."
    )


def _of(count: int, found: FalsePositives) -> str:
    return f"{count} of {found.pairs}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
