"""The tables of one scenario."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ddbench import metrics
from reports.aggregate import Analysis
from reports.choose import Scenario, best, fixed, usable
from reports.figures.stages import split
from reports.frames import records
from reports.sections.answer import verdict
from reports.sections.text import folded, interval, missing, number, share, table, whole

Row = dict[str, Any]
SAME = 0.005  # acceptance lengths this near, as a share, are called the same


def best_by_batch(scenario: Scenario) -> list[str]:
    """The fastest strategy of each batch size with its hindsight-best shape, and the others below it."""
    arrivals = _arrivals(scenario)
    rows = [
        {
            "Batch size": whole(row["batch_size"]),
            "Hindsight-best shape": row["label"],
            "Decode tokens/s per user": interval(row, "tokens_per_s_per_user", 1),
            f"Aggregate tokens/s{arrivals}": interval(row, "tokens_per_s", 1),
            "x autoregressive": interval(row, "speedup_vs_autoregressive"),
            "x chain": interval(row, "speedup_vs_dflash"),
            "Against chain": verdict(row, "speedup_vs_dflash"),
            "n (prompts)": whole(row["prompts"]),
        }
        for row in records(best(scenario.frame))
    ]
    return [
        *table(rows),
        "",
        f"The chain is the deepest linear DFlash chain of the run ({_chains(scenario)}). Fastest first in a batch "
        "size.",
    ]


def product(scenario: Scenario) -> list[str]:
    """tokens/s = acceptance length / round time, each factor set against the chain's."""
    frame = fixed(scenario.frame)
    if frame.empty:
        return ["No point finished with status ok."]
    shown = pd.concat([frame, best(scenario.frame)]).drop_duplicates("point_id")
    shown = shown.sort_values(["batch_size", "tokens_per_s_per_user"], ascending=[True, False], kind="stable")
    chains = {row["point_id"]: row for row in records(scenario.frame)}
    rows = []
    for row, parts in zip(records(shown), records(split(shown)), strict=True):
        chain: Row | None = chains.get(row["dflash_point_id"])
        acceptance = 1.0 if row["strategy"] == "autoregressive" else row["acceptance_length"]
        rows.append(
            {
                "Batch size": whole(row["batch_size"]),
                "Arm": row["label"],
                "Tokens per round": number(acceptance),
                "Round (ms)": number(row["step_ms"]),
                "= tokens/s per user": number(row["tokens_per_s_per_user"], 1),
                "Tokens, x chain": _factor(acceptance, chain, "acceptance_length"),
                "Round time, x chain": _factor(row["step_ms"], chain, "step_ms"),
                "Reading": _reading(row, acceptance, chain),
                "Draft / build / verify / commit / other (ms)": _stages(row, parts),
            }
        )
    return [
        "tokens/s = tokens per round / round time. A tree beats the chain when it gains more in tokens per round "
        "than it pays in round time.",
        "",
        *table(rows),
    ]


def all_results(scenario: Scenario) -> list[str]:
    """Every point, a table a batch size, in the order of strategy and shape."""
    lines: list[str] = []
    for size in scenario.batch_sizes:
        rows = [_result(row, _arrivals(scenario)) for row in records(scenario.at(size))]
        lines += [*folded(f"Batch size {size}: {len(rows)} points", table(rows)), ""]
    return [
        *lines,
        "All columns are in `results.parquet` and `results.csv`; the request rows they come from in `cells/`.",
    ]


def conventions(scenario: Scenario, analysis: Analysis) -> list[str]:
    """The acceptance length of the fixed shapes as each tool would average it, from the same integers."""
    frame = fixed(scenario.frame)
    frame = frame[frame["acceptance_length"].notna()]
    if frame.empty:
        return ["No speculative arm finished."]
    frame = frame[frame["batch_size"] == frame["batch_size"].min()]
    points = {point.row["point_id"]: point for point in analysis.points}
    rows = []
    for tool in metrics.CONVENTIONS:
        prefill = "yes" if tool.prefill_token else "no"
        row: Row = {"Tool": tool.tool, "Formula": tool.formula, "Prefill token": prefill}
        row["Averaging"] = tool.averaging
        for each in records(frame):
            row[each["label"]] = number(tool.value(points[each["point_id"]].counts), 3)
        rows.append(row)
    return [
        f"Acceptance length of the same requests (batch size {int(frame['batch_size'].iloc[0])}) under each tool's "
        "convention. T: output tokens with the prefill's, S: verify rounds, A: accepted drafted tokens and a those "
        "of one round, both before clipping. All include the bonus token.",
        "",
        *table(rows),
    ]


def _arrivals(scenario: Scenario) -> str:
    """Marks aggregate tokens/s where it follows the arrivals of an open loop."""
    return "" if scenario.rate is None else " (set by arrivals)"


def _result(row: Row, arrivals: str) -> dict[str, str]:
    return {
        "Arm": row["label"],
        "Acceptance length": interval(row, "acceptance_length"),
        "Tokens/s per user": interval(row, "tokens_per_s_per_user", 1),
        f"Tokens/s{arrivals}": interval(row, "tokens_per_s", 1),
        "x autoregressive": interval(row, "speedup_vs_autoregressive"),
        "x chain": interval(row, "speedup_vs_dflash"),
        "Round (ms)": number(row["step_ms"]),
        "TTFT (ms)": number(row["ttft_ms"], 1),
        "Node efficiency": share(row["node_efficiency"]),
        "Verify width": whole(row["verify_width"]),
        "Lossless": share(row["lossless_share"]),
        "n": whole(row["prompts"]),
        "Status": row["status"],
    }


def _chains(scenario: Scenario) -> str:
    frame = usable(scenario.frame)
    used = set(frame["dflash_point_id"].dropna())
    labels = sorted(set(frame[frame["point_id"].isin(used)]["label"]))
    return ", ".join(labels) or "none finished"


def _factor(value: Any, chain: Row | None, name: str) -> str:
    if chain is None or missing(value) or missing(chain[name]):
        return number(None)
    return number(float(value) / float(chain[name]))


def _reading(row: Row, acceptance: Any, chain: Row | None) -> str:
    """In words, whether the arm gains or loses against the chain, and by which factor."""
    if chain is None or missing(acceptance) or missing(chain["acceptance_length"]):
        return number(None)
    if row["point_id"] == chain["point_id"]:
        return "the chain"
    gain = float(acceptance) / float(chain["acceptance_length"])
    cost = float(row["step_ms"]) / float(chain["step_ms"])
    if abs(gain - 1) < SAME:
        return "same acceptance, " + ("dearer rounds" if cost > 1 else "cheaper rounds")
    if gain > 1 and cost > 1:
        return "acceptance pays for the cost" if gain > cost else "loses by cost, in spite of acceptance"
    if gain > 1:
        return "ahead in acceptance and cost"
    if cost > 1:
        return "behind in acceptance and cost"
    return "cheaper rounds outweigh acceptance" if gain > cost else "loses by acceptance, in spite of cheaper rounds"


def _stages(row: Row, parts: dict[str, float]) -> str:
    if missing(row["verify_ms"]):
        return number(None)
    return " / ".join(number(parts[name]) for name in ("draft", "build", "verify", "commit", "other"))
