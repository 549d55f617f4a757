"""Results by category of prompt: code, prose and mathematics are drafted with very different luck."""

from __future__ import annotations

from typing import Any

from reports.aggregate import Analysis
from reports.choose import Scenario, fixed
from reports.frames import records
from reports.sections.text import LONGEST, folded, interval, literal, table, whole

Row = dict[str, Any]


def section(scenario: Scenario, analysis: Analysis) -> list[str]:
    """The fixed shapes, a table a batch size; nothing where the prompts have one category."""
    shapes = fixed(scenario.frame)
    labels = dict(zip(shapes["point_id"], shapes["label"], strict=True))
    sizes = dict(zip(shapes["point_id"], shapes["batch_size"], strict=True))
    blocks = dict(zip(shapes["point_id"], shapes["blocks"], strict=True))
    rows = [
        {**row, "blocks": blocks[row["point_id"]]} for row in records(analysis.categories) if row["point_id"] in labels
    ]
    if len({(row["dataset"], row["category"]) for row in rows}) < 2:
        return []
    lines = [
        "## By category of prompt",
        "",
        "The one shape per strategy with the best geometric mean over batch sizes. Few prompts make wide intervals.",
        "",
    ]
    for size in scenario.batch_sizes:
        here = [row for row in rows if sizes[row["point_id"]] == size]
        here.sort(key=lambda row: (str(row["dataset"]), str(row["category"]), list(labels).index(row["point_id"])))
        if here:
            lines += [*folded(f"Batch size {size}", table([_row(row, labels) for row in here])), ""]
    return lines


def _row(row: Row, labels: dict[str, str]) -> dict[str, str]:
    return {
        "Category": literal(row["category"], LONGEST),
        "Arm": labels[row["point_id"]],
        "Acceptance length": interval(row, "acceptance_length"),
        "Tokens/s per user": interval(row, "tokens_per_s_per_user", 1),
        "x autoregressive": interval(row, "speedup_vs_autoregressive"),
        "x chain": interval(row, "speedup_vs_dflash"),
        "n (prompts)": whole(row["prompts"]),
    }
