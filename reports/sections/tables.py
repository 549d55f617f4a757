"""The tables of one scenario."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ddbench.acceptance import VARIANTS
from reports.aggregate import Analysis
from reports.choose import Scenario, best, fixed, usable, why_none
from reports.columns import BASELINES
from reports.figures.stages import split
from reports.frames import records
from reports.sections.answer import verdict
from reports.sections.text import NOTHING, folded, interval, listed, missing, number, share, table, whole

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
            "Against autoregressive": verdict(row, "speedup_vs_autoregressive"),
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
        f"size. {bars(scenario)}",
    ]


def bars(scenario: Scenario) -> str:
    """What the intervals of a scenario are, and of how many of what."""
    frame = usable(scenario.frame)
    methods = sorted(
        {str(method) for name in BASELINES for method in frame[f"speedup_vs_{name}_method"].dropna().unique()}
    )
    blocks = sorted({int(n) for n in frame["tokens_per_s_n"].dropna()})
    each = "; ".join(methods) or "none"
    least = f"n = {listed([str(n) for n in blocks])} block{'s' if blocks != [1] else ''}" if blocks else "no blocks"
    kind = "t over blocks" if blocks and blocks[-1] > 1 else "no interval from one block"
    return f"Intervals (95 %): speed-ups, {each}; aggregate tokens/s, {kind} ({least})."


def product(scenario: Scenario) -> list[str]:
    """tokens/s = acceptance length / round time, each factor set against the chain's."""
    frame = fixed(scenario.frame)
    if frame.empty:
        why = why_none(scenario.frame)
        return [f"{why[0].upper()}{why[1:]}."]
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
                "Bandwidth ceiling": number(row["bandwidth_ceiling_tokens_per_s"], 0),
                "Share of it": share(row["bandwidth_share"]),
                "Tokens, x chain": _factor(row, "acceptance_ratio_vs_dflash", acceptance, chain, "acceptance_length"),
                "Round time, x chain": _factor(row, "step_ratio_vs_dflash", row["step_ms"], chain, "step_ms"),
                "Reading": _reading(row, acceptance, chain),
                "n (prompts)": whole(row["prompts"]),
                "Draft / build / verify / commit / other (ms)": _stages(row, parts),
            }
        )
    return [
        "tokens/s = tokens per round / round time. A tree beats the chain when it gains more in tokens per round "
        "than it pays in round time. The bandwidth ceiling is the speed if a round took no longer than reading the "
        "target's weights once at the GPU's full memory bandwidth; its columns are left out where weights or "
        "bandwidth are unknown.",
        "",
        *table(_without_empty(rows, ("Bandwidth ceiling", "Share of it"))),
    ]


def _without_empty(rows: list[Row], names: tuple[str, ...]) -> list[Row]:
    """``rows`` without those of the columns ``names`` in which no row has a value."""
    gone = {name for name in names if all(row[name] == NOTHING for row in rows)}
    return [{name: value for name, value in row.items() if name not in gone} for row in rows]


def all_results(scenario: Scenario) -> list[str]:
    """Every point, a table a batch size, in the order of strategy and shape."""
    lines: list[str] = []
    for size in scenario.batch_sizes:
        rows = [_result(row, _arrivals(scenario)) for row in records(scenario.at(size))]
        if scenario.fixed_length:
            rows = [{name: text for name, text in row.items() if "x " not in name} for row in rows]
        lines += [*folded(f"Batch size {size}: {len(rows)} points", table(rows)), ""]
    return [
        *lines,
        "All columns are in `results.parquet` and `results.csv`; the request rows they come from in `cells/`. A p99 "
        "is given from 459 requests on. The sign test counts the prompts on which the arm was faster and slower; it "
        "does not see by how much.",
    ]


def conventions(scenario: Scenario, analysis: Analysis) -> list[str]:
    """The acceptance length of the fixed shapes as each tool would average it, from the same integers."""
    frame = fixed(scenario.frame)
    frame = frame[frame["acceptance_length"].notna()]
    if frame.empty:
        return ["No speculative arm has an acceptance length."]
    frame = frame[frame["batch_size"] == frame["batch_size"].min()]
    values = {row["point_id"]: row for row in records(analysis.acceptance_variants)}
    rows = []
    for variant in VARIANTS:
        row: Row = {"Tool": variant.tool, "Definition": variant.definition, "Averaging": variant.averaging}
        row["Bonus token"] = "yes" if variant.bonus else "no"
        row["Prefill token"] = "yes" if variant.prefill_token else "no"
        for each in records(frame):
            row[each["label"]] = number(values.get(each["point_id"], {}).get(variant.name), 3)
        rows.append(row)
    return [
        f"Acceptance length of the same requests (batch size {int(frame['batch_size'].iloc[0])}) under each tool's "
        "definition. T: output tokens with the prefill's, S: verify rounds, A: accepted drafted tokens and a those "
        "of one round, both before clipping.",
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
        "TTFT p50 / p95 / p99 (ms)": _percentiles(row, "ttft"),
        "Latency p50 / p95 / p99 (ms)": _percentiles(row, "latency"),
        "Steady tokens/s": number(row["tokens_per_s_steady"], 1),
        "Node efficiency": share(row["node_efficiency"]),
        "Verify width": whole(row["verify_width"]),
        "Lossless": share(row["lossless_share"]),
        "Sign test p, x autoregressive": number(row["speedup_vs_autoregressive_sign_p"], 3),
        "n (prompts)": whole(row["prompts"]),
        "Status": row["status"],
    }


def _percentiles(row: Row, clock: str) -> str:
    return " / ".join(number(row[f"p{percent}_{clock}_ms"], 1) for percent in (50, 95, 99))


def _chains(scenario: Scenario) -> str:
    frame = usable(scenario.frame)
    used = set(frame["dflash_point_id"].dropna())
    labels = sorted(set(frame[frame["point_id"].isin(used)]["label"]))
    return ", ".join(labels) or "none finished"


def _factor(row: Row, ratio: str, value: Any, chain: Row | None, name: str) -> str:
    """A factor against the chain, with its interval where the results have one."""
    if not missing(row[ratio]):
        return interval(row, ratio)
    if chain is None or missing(value) or missing(chain[name]):
        return number(None)
    return number(float(value) / float(chain[name]))


def _reading(row: Row, acceptance: Any, chain: Row | None) -> str:
    """In words, whether the arm gains or loses against the chain, and by which factor."""
    if chain is None or missing(acceptance) or missing(chain["acceptance_length"]):
        return number(None)
    if missing(row["step_ms"]) or missing(chain["step_ms"]):
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
