"""The page and figures of a prediction: marked PREDICTED everywhere, from the stored files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
import pyarrow.parquet as pq

from reports.figures.predicted import MARK, against, speed
from reports.figures.style import STYLE
from reports.sections.text import NOTHING, literal, number, table
from reports.write import write_page

BANNER = (
    f"**{MARK}, not measured.** Rounds are replayed from a recording, times come from a fitted step cost; no engine "
    "ran any of these points. A prediction chooses what to measure; it does not stand for a measurement."
)


def write_prediction(folder: Path) -> Path:
    """Writes ``report.md`` (HTML beside it) and ``figures/*.png``; where the page is."""
    told = json.loads((folder / "predicted.json").read_text(encoding="utf-8"))
    frame = pq.read_table(folder / "surface.parquet").to_pandas(types_mapper=_nullable)
    there = folder / "elsewhere.parquet"
    other = pq.read_table(there).to_pandas(types_mapper=_nullable) if there.exists() else None
    (folder / "figures").mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        speed(frame, told).savefig(folder / "figures" / "predicted_speed.png", dpi=120)
        if told["check"] is not None:
            against(told).savefig(folder / "figures" / "predicted_against_measured.png", dpi=120)
    page = folder / "report.md"
    write_page(page, _page(frame, told, other))
    return page


def _page(frame: pd.DataFrame, told: Mapping[str, Any], other: pd.DataFrame | None) -> str:
    setup = told["cost"]["fingerprint"]
    lines = [
        f"# {MARK}: speed by shape and batch size, {literal(told['model'])}",
        "",
        BANNER,
        "",
        *what_if(told),
        f"Rounds: replayed from a recording of {literal(told['recording']['workload'])} "
        f"({literal(told['recording']['gpu'] or 'on a CPU')}). Times: {literal(setup.get('engine_version'))} on "
        f"{literal(setup.get('device'))}, {literal(setup.get('dtype'))}; "
        f"{literal(told['cost']['source'].get('how'))}, acceptance {literal(told['cost']['source'].get('accepted'))}.",
        "",
        f"Tokens/s per user = 1000 x acceptance length / round time, with the batch full and no prompt read ({MARK}).",
        "",
        f"## Best shape by batch size ({MARK})",
        "",
        *table([_best(each) for each in told["best"]]),
        "",
        "Outside: the best shape or the next lies beyond what the cost was measured in; its number is extrapolated.",
        "",
        f"## Where speculation pays ({MARK})",
        "",
        *table([_pays(each) for each in told["pays"]]),
        "",
        f"![{MARK} speed](figures/predicted_speed.png)",
        "",
        *_check(told["check"]),
        *_elsewhere(other, told["card"]),
        f"## The surface ({MARK})",
        "",
        *_surface(frame),
        "",
        f"All points: `surface.parquet`. Not {MARK.lower()} are those outside of what the cost was measured in: "
        f"{int(frame['round_ms'].isna().sum())} of {len(frame)} have no numbers, "
        f"{int((frame['extrapolated'] & frame['round_ms'].notna()).sum())} are extrapolated.",
        "",
    ]
    return "\n".join(lines)


def what_if(told: Mapping[str, Any]) -> list[str]:
    """The warning of a page that joins the rounds of one model with the times of another."""
    other = told.get("other_model")
    return [f"**WHAT IF: nobody's speed.** Two models are joined: {literal(other)}.", ""] if other else []


def _best(each: Mapping[str, Any]) -> dict[str, str]:
    over = each["margin_over"]
    return {
        "Batch": str(each["batch_size"]),
        "Temperature": f"{each['temperature']:g}",
        f"Best shape ({MARK})": label(each["shape"]),
        f"Tokens/s per user ({MARK})": number(each["speed"], 1),
        "Next": label(each["next"]) if each["next"] else NOTHING,
        "Margin": _percent(each["margin"]),
        **{
            f"over {name}": _percent(over.get(name)) if name in over or each["shape"]["strategy"] != name else "itself"
            for name in ("autoregressive", "dflash", "ddtree")
        },
        "outside": "yes" if each.get("extrapolated") else "",
    }


def _pays(each: Mapping[str, Any]) -> dict[str, str]:
    crossings = [f"{'pays from' if rises else 'stops paying at'} {at:.1f}" for at, rises in each["crossings"]]
    always = "pays at every size" if each["always"] else "pays at no size"
    ratios = zip(each["sizes"], each["ratios"], strict=True)
    return {
        "Strategy (best shape of each size)": each["strategy"],
        "Temperature": f"{each['temperature']:g}",
        f"Crossover batch size ({MARK}, interpolated)": "; ".join(crossings) or always,
        "Speed-up over autoregressive by batch size": ", ".join(f"{size}: {ratio:.2f}x" for size, ratio in ratios),
        "outside at batch": ", ".join(map(str, each.get("extrapolated") or ())),
    }


def _check(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    named = {
        "loop_error": "closed loop: replayed rounds, reading of prompts, ramps (tokens/s per user)",
        "formula_error": "formula: acceptance length over round time (tokens/s per user)",
        "measured_rounds_error": "closed loop of the rounds that were measured: the step cost alone",
        "aggregate_error": "closed loop: tokens/s over the whole span",
    }
    rows = []
    for name, words in named.items():
        error = found["summary"][name]
        parts = {key: _percent(error[key], sign=False) for key in ("median", "q1", "q3", "worst")}
        rows.append({"Error of the prediction": words, **parts, "n": str(error["n"])})
    points = [
        {
            "Shape": label(each),
            "Batch": str(each["batch_size"]),
            "Measured tokens/s per user": number(each["measured"], 1),
            f"{MARK}": number(each["predicted"], 1),
            "error": _percent(each["loop_error"]),
            "formula": _percent(each["formula_error"]),
            "step cost alone": _percent(each["measured_rounds_error"]),
            "same rounds": _percent(each["same_rounds"], sign=False),
            "outside": "yes" if each["extrapolated"] else "",
        }
        for each in found["points"]
    ]
    return [
        "## Against measured points",
        "",
        "Relative errors, predicted / measured - 1, without sign in the first table; goal: a median of at most 5 %.",
        "",
        *table(rows),
        "",
        "![predicted against measured](figures/predicted_against_measured.png)",
        "",
        *table(points),
        "",
        "Same rounds: share of the requests whose rounds were replayed exactly. Outside: the point lies beyond what "
        "the cost was measured in.",
        "",
    ]


def _elsewhere(other: pd.DataFrame | None, card: str | None) -> list[str]:
    if other is None:
        return []
    rows = []
    for (temperature, batch), group in other.groupby(["temperature", "batch_size"], sort=True):
        row = {"Batch": str(batch), "Temperature": f"{temperature:g}"}
        for name, words in (("stays", "the excess stays"), ("scales", "the excess scales")):
            top = group.loc[group[name].idxmax()].to_dict()
            row[f"Best if {words} ({MARK})"] = label(top) + (" (outside)" if top.get("extrapolated") else "")
            row[f"tokens/s per user, {words}"] = f"{top[name]:.0f}"
            row[f"expected within, {words}"] = f"{top['low']:.0f} to {top['high']:.0f}"
        rows.append(row)
    return [
        f"## On {literal(card)}, a card that nothing was measured on ({MARK})",
        "",
        "From its bandwidth and arithmetic alone. A round's floor is the bytes and operations of its passes; what it "
        "takes beyond that stays as it is on the measured card, or scales with the floor (docs/pro6000.md).",
        "",
        *table(rows),
        "",
    ]


def _surface(frame: pd.DataFrame, most: int = 60) -> list[str]:
    """The fastest points of each batch size, as many as a page holds."""
    shown = frame[frame["round_ms"].notna()].sort_values(
        ["temperature", "batch_size", "tokens_per_s_per_user"], ascending=[True, True, False], kind="stable"
    )
    each = max(3, most // max(1, shown.groupby(["temperature", "batch_size"]).ngroups))
    top = shown.groupby(["temperature", "batch_size"], sort=False).head(each)
    rows = [
        {
            "Batch": str(row["batch_size"]),
            "Shape": label(row),
            "Acceptance length (replayed)": number(row["acceptance_length"]),
            f"Round ms ({MARK})": number(row["round_ms"], 3),
            f"Tokens/s per user ({MARK})": number(row["tokens_per_s_per_user"], 1),
            f"Tokens/s ({MARK})": number(row["tokens_per_s"], 1),
            "x autoregressive": number(row["speedup_vs_autoregressive"]),
            "x deepest chain": number(row["speedup_vs_dflash"]),
            "outside": "yes" if row["extrapolated"] else "",
        }
        for row in top.to_dict("records")
    ]
    return [f"The {each} fastest shapes of each batch size.", "", *table(rows)]


def label(shape: Mapping[str, Any]) -> str:
    """A shape in a few words."""
    axes = [f"{axis} {int(shape[axis])}" for axis in ("width", "depth", "nodes") if not _none(shape[axis])]
    return " ".join([str(shape["strategy"]), *axes])


def _percent(value: float | None, sign: bool = True) -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def _none(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and value != value)


def _nullable(kind: Any) -> Any:
    import pyarrow as pa

    return {pa.int32(): pd.Int32Dtype(), pa.float64(): pd.Float64Dtype()}.get(kind)
