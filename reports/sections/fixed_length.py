"""Scenarios of fixed length: answers run past their end of text, so that only the cost of a round can be learned."""

from __future__ import annotations

from typing import Any

from reports.choose import Scenario, ordered_strategies, usable
from reports.figures.stages import split
from reports.frames import records
from reports.sections.text import interval, listed, missing, number, table, whole

Row = dict[str, Any]


def sentence(scenario: Scenario) -> str:
    """What a round took, by batch size and strategy: shortest and longest over the shapes. It names no winner."""
    clauses = []
    for size in scenario.batch_sizes:
        frame = usable(scenario.at(size))
        frame = frame[frame["step_ms"].notna()]
        costs = [
            _cost(strategy, records(frame[frame["strategy"] == strategy])) for strategy in ordered_strategies(frame)
        ]
        if costs:
            clauses.append(f"at batch size {size} {listed(costs)}")
    return f"fixed length: step cost only. A round took {'; '.join(clauses)}."


def results(scenario: Scenario) -> list[str]:
    """Every measured shape with the time of its rounds."""
    frame = usable(scenario.frame)
    rows = [
        {
            "Batch size": whole(row["batch_size"]),
            "Arm": row["label"],
            "Round (ms)": interval(row, "step_ms"),
            "Round time, x chain": interval(row, "step_ratio_vs_dflash"),
            "Verify width": whole(row["verify_width"]),
            "Draft / build / verify / commit / other (ms)": _stages(row, parts),
            "n (prompts)": whole(row["prompts"]),
        }
        for row, parts in zip(records(frame), records(split(frame)), strict=True)
    ]
    return [
        "Answers run past their end of text, where tokens per round are no longer the model's own: the page ranks "
        "nothing here and gives the time of a round alone (of autoregressive decoding: of a token). What the tables "
        "below say of acceptance and speed holds for such text only.",
        "",
        *table(rows),
    ]


def _cost(strategy: str, rows: list[Row]) -> str:
    ordered = sorted(rows, key=lambda row: float(row["step_ms"]))
    if len(ordered) == 1:
        return f"{interval(ordered[0], 'step_ms')} ms with {ordered[0]['label']}"
    low, high = number(ordered[0]["step_ms"]), number(ordered[-1]["step_ms"])
    return f"{low} to {high} ms with {len(ordered)} shapes of {strategy}"


def _stages(row: Row, parts: dict[str, float]) -> str:
    if missing(row["verify_ms"]):
        return number(None)
    return " / ".join(number(parts[name]) for name in ("draft", "build", "verify", "commit", "other"))
