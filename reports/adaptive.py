"""The page and figures of ``experiment=adaptive``, from its stored files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pyarrow.parquet as pq

from reports.figures.adaptive import against_best
from reports.figures.predicted import MARK
from reports.figures.style import STYLE
from reports.predicted import what_if
from reports.sections.text import NOTHING, literal, number, table
from reports.write import write_page

PRICED_BY_FIT = (
    "speeds come from a fitted step cost, and the policies choose by that same cost: this is what they would gain if "
    "they knew exactly what a step takes."
)
PRICED_BY_JUDGE = (
    "policies choose by a cost file, and every arm is priced by round times that were measured, at widths that "
    "the fit never saw too: an error of the fit is paid for."
)
PRICED_AND_KNOWN = (
    "every arm is priced by round times that were measured, and the policies choose by them: this is what they would "
    "gain if they knew exactly what a step takes."
)
BANNER = (
    f"**{MARK}, not measured.** Rounds are replayed from a recording, {{priced}} What the "
    "largest budget adds to every build, and the asking, is in no price. The best single arm of a point is chosen in "
    "hindsight among autoregressive decoding, the chains and the fixed trees; the oracle knows the text and is an "
    "upper bound, not something that can be had. At large batches prompts are taken more than once, and a policy then "
    "knows their texts, which no fixed arm gains from."
)


def write_comparison(folder: Path) -> Path:
    """Writes ``report.md`` (HTML beside it) and ``figures/*.png``; where the page is."""
    told = json.loads((folder / "adaptive.json").read_text(encoding="utf-8"))
    frame = pq.read_table(folder / "adaptive.parquet").to_pandas()
    (folder / "figures").mkdir(exist_ok=True)
    pictures = []
    with mpl.rc_context(STYLE):
        for temperature in sorted(set(frame["temperature"])):
            name = f"adaptive_T{temperature:g}.png"
            against_best(frame, told, temperature).savefig(folder / "figures" / name, dpi=120)
            pictures.append(f"![Against the best single arm, T = {temperature:g}](figures/{name})")
    page = folder / "report.md"
    write_page(page, _page(frame, told, pictures))
    return page


def _page(frame: pd.DataFrame, told: Mapping[str, Any], pictures: Sequence[str]) -> str:
    setup = told["cost"]["fingerprint"]
    lines = [
        f"# {MARK}: adaptive budgets, {literal(told['model'])}",
        "",
        BANNER.format(priced=_priced(told)),
        "",
        *what_if(told),
        f"Rounds: a recording of {literal(told['recording']['workload'])} "
        f"({literal(told['recording']['gpu'] or 'on a CPU')}). Times: {literal(setup.get('engine_version'))} on "
        f"{literal(setup.get('device'))}, {literal(setup.get('dtype'))}, clock {literal(setup.get('clock', 'wall'))}. "
        f"Budgets {', '.join(map(str, told['candidates']['trees']))}; chains of "
        f"{', '.join(map(str, told['candidates']['chains']))}. Decoding alone; prompts are taken again "
        f"until there are {told['fill']} for each row of a batch.",
        "",
        *_live(told["live"]),
        f"## Is it never slower, and where is it faster? ({MARK})",
        "",
        *table([_summary(each) for each in told["summary"].values()]),
        "",
        *pictures,
        "",
        *_below(told["summary"]),
        f"## Every point ({MARK} tokens/s)",
        "",
        *table([_point(*each, list(told["summary"])) for each in _points(frame)]),
        "",
        *_left_out(told["left_out"]),
        *_unsteady(told.get("judge_left_out") or []),
        *_calibration(told["calibration"]),
        "All arms: `adaptive.parquet`. What was found: `adaptive.json`.",
        "",
    ]
    return "\n".join(lines)


def _priced(told: Mapping[str, Any]) -> str:
    if told.get("judge") is None:
        return PRICED_BY_FIT
    return PRICED_BY_JUDGE if not told.get("knows") else PRICED_AND_KNOWN


def _summary(each: Mapping[str, Any]) -> dict[str, str]:
    return {
        "Policy": literal(each["policy"]),
        "Points": str(each["points"]),
        f"Worst ({MARK})": number(each["worst"], 3),
        f"Median ({MARK})": number(each["median"], 3),
        f"Best ({MARK})": number(each["best"], 3),
        "More than 2 % below": str(len(each["below"])),
        "Above all": str(len(each["above"])),
    }


def _below(summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = [each for one in summaries.values() for each in one["below"] if each["policy"] == "cost_optimal"]
    if "cost_optimal" not in summaries:
        return []
    if not summaries["cost_optimal"]["points"]:
        return [f"{MARK}: `cost_optimal` is left out at every point.", ""]
    if not found:
        return [f"{MARK}: `cost_optimal` is nowhere more than 2 % below the best single arm.", ""]
    rows = [
        {
            "Prompts": literal(each["group"]),
            "T": f"{each['temperature']:g}",
            "Batch": str(each["batch_size"]),
            "Best single arm": each["best"],
            f"Ratio ({MARK})": number(each["ratio"], 3),
        }
        for each in found
    ]
    return [f"### Where `cost_optimal` is more than 2 % below ({MARK})", "", *table(rows), ""]


def _points(frame: pd.DataFrame) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    return list(frame.groupby(["group", "temperature", "batch_size"], sort=False))


def _point(where: tuple[Any, ...], mine: pd.DataFrame, policies: Sequence[str]) -> dict[str, str]:
    group, temperature, size = where
    single = mine[~mine["kind"].isin(["policy", "oracle"])]
    best = single.loc[single["tokens_per_s"].idxmax()]
    cells = {"Prompts": literal(group), "T": f"{temperature:g}", "Batch": str(size)}
    for kind, title in (("autoregressive", "Autoregressive"), ("chain", "Best chain"), ("tree", "Best fixed tree")):
        own = mine[mine["kind"] == kind]
        if own.empty:
            cells[title] = NOTHING
            continue
        top = own.loc[own["tokens_per_s"].idxmax()]
        cells[title] = number(top["tokens_per_s"], 0) + ("" if kind == "autoregressive" else f" ({int(top['nodes'])})")
    for arm in [*policies, "oracle"]:
        rates = mine.loc[mine["arm"] == arm, "tokens_per_s"]
        if rates.empty:
            cells[arm] = NOTHING
            continue
        speed = float(rates.iloc[0])
        cells[arm] = f"{number(speed, 0)} ({number(speed / float(best['tokens_per_s']), 3)})"
    return cells


def _left_out(left: Sequence[Mapping[str, Any]]) -> list[str]:
    reasons = dict.fromkeys((each["batch_size"], each["reason"]) for each in left if each.get("arm") is None)
    lines = [line for size, reason in reasons for line in (f"Batch {size} is left out: {reason}.", "")]
    arms: dict[tuple[int, str], dict[str, None]] = {}
    for each in left:
        if each.get("arm") is not None and each.get("kind") != "policy":
            arms.setdefault((each["batch_size"], each["reason"]), {})[each["arm"]] = None
    for (size, reason), names in arms.items():
        lines += [f"No single arm at batch {size}: {', '.join(names)}; each {reason}.", ""]
    policies: dict[tuple[str, int, float, str], list[str]] = {}
    for each in left:
        if each.get("kind") == "policy":
            where = each["arm"], each["batch_size"], each["temperature"], each["reason"]
            policies.setdefault(where, []).append(literal(each["group"]))
    for (name, size, temperature, reason), groups in policies.items():
        lines += [f"`{name}` is left out at batch {size}, T = {temperature:g}, on {', '.join(groups)}: {reason}.", ""]
    return lines


def _unsteady(left: Sequence[str]) -> list[str]:
    return [f"Round times that were unsteady, and price nothing: {', '.join(map(literal, left))}.", ""] if left else []


def _calibration(told: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["## Can the drafter be believed?", ""]
    for each in told:
        rows = [
            {
                "Depth": str(depth + 1),
                "Expected on its chain": number(each["expected"][1][depth], 0),
                "Accepted / expected": number(each["factors"][1][depth], 2),
                "Expected off it": number(each["expected"][0][depth], 0),
                "Accepted / expected off it": number(each["factors"][0][depth], 2),
            }
            for depth in range(len(each["factors"][1]))
        ]
        lines += [
            f"{literal(each['group'])}, T = {each['temperature']:g}: trees of {each['nodes']} nodes at all "
            f"{each['anchors']} places of the texts. 1 is a drafter whose probabilities come true; a chain's later "
            "tokens come more often than the product of their probabilities, nodes beside it less often.",
            "",
            *table(rows),
            "",
        ]
    return lines


def _live(told: Mapping[str, Any] | None) -> list[str]:
    if told is None:
        return ["## Measured", "", "Nothing: `adaptive.decode=true` decodes some of the prompts with every arm.", ""]
    policies = list(dict.fromkeys(arm["arm"] for point in told["points"] for arm in point["arms"] if arm["policy"]))
    judged = [
        {
            "Policy (measured)": name,
            **{
                f"Batch {point['batch_size']}": number(next(a["ratio"] for a in point["arms"] if a["arm"] == name), 3)
                for point in told["points"]
            },
        }
        for name in policies
    ]
    rows = [
        {
            "Batch": str(point["batch_size"]),
            "Arm": arm["arm"],
            "Tokens/s": number(arm["tokens_per_s"], 1),
            "Of the best single": number(arm["ratio"], 3),
            "Spread of turns": number(arm["spread"], 3),
            "Same text": f"{arm['same_text']}/{point['requests']}",
            "As replayed": NOTHING if arm["as_replayed"] is None else f"{arm['as_replayed']}/{point['requests']}",
        }
        for point in told["points"]
        for arm in point["arms"]
    ]
    return [
        "## Measured: decoded, of the best single arm",
        "",
        *table(judged),
        "",
        f"{told['prompts']} prompts, {told['output_tokens']} tokens, T = {told['temperature']:g}; median of "
        f"{told['turns']} turns by the {told['clock']} clock, whole answers with the reading of prompts. "
        "*As replayed*: requests whose every round has the choice and the accepted tokens of the replay.",
        "",
        *table(rows),
        "",
    ]
