"""The page and the figure of a cost file: what was measured, what was fitted, and how far they are apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from ddbench.cost import STAGES, CostModel, Point, load_cost
from reports.figures.style import STYLE, colour, headline, panels, shared_legend
from reports.sections.text import NOTHING, literal, number, table

UNITS = {
    "autoregressive": "One token of every sequence",
    "dflash": "A round of the chain",
    "ddtree": "A round of the tree",
    "prefill": "Reading one prompt",
}
MARKS = "osD^vXP*"


def cost_page(path: Path, figure: str) -> str:
    """Markdown, from the cost file alone."""
    model = load_cost(path)
    kinds: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["kinds"]
    lines = [
        "# Step cost",
        "",
        "Milliseconds of one step of a whole batch, whatever is accepted. It holds for the setup below and no other.",
        "",
        *table([{"What": key, "Value": literal(value)} for key, value in model.fingerprint.items()]),
        "",
        *table([{"How it was measured": key, "Value": literal(value)} for key, value in model.source.items()]),
        "",
        "The fit is convex in the tokens of a pass t = verify width w x batch b, with c the committed tokens of a "
        "sequence: `ms = base + T(t) + R(b) + (a + r b + k t) c`, T and R piecewise linear, never falling and convex "
        "(docs/step_cost.md). A kernel that steps cannot be convex: it stands in the errors below.",
        "",
        f"![step cost]({figure})",
        "",
        "## How well the fit tells the points",
        "",
        *table([_errors(kind, each) for kind, each in kinds.items()]),
        "",
        "Relative errors without sign. Left out: of the fit to all other points, at the one that it has not seen; at "
        "the ends of a range it says how well the fit goes beyond what it has seen.",
        "",
    ]
    for kind, each in kinds.items():
        lines += [f"## {UNITS[kind]} ({kind})", "", *_formula(each["fit"]), ""]
        rows = zip(model.points[kind], each["residuals"], each["left_out"], strict=True)
        lines += [*table([_row(point, *errors) for point, *errors in rows]), ""]
    return "\n".join(lines)


def draw_cost(path: Path, target: Path) -> None:
    """A panel a kind of step: points with their spread against the tokens of the pass, and the fit through them."""
    model = load_cost(path)
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(model.points), width=4.8, height=4.2)
        sizes = sorted({point.batch for points in model.points.values() for point in points})
        for axis, (kind, points) in zip(axes, model.points.items(), strict=True):
            _panel(axis, model, kind, points, sizes)
        shared_legend(figure, axes, ncols=4)
        setup = model.fingerprint
        headline(
            figure,
            "What a step costs",
            f"{setup.get('device')} · {setup.get('engine_version')} · {setup.get('dtype')} · points: median of repeats "
            "with the fastest and the slowest · lines: the convex fit, at the shortest context",
        )
        figure.savefig(target, dpi=120)


def _panel(axis: Any, model: CostModel, kind: str, points: tuple[Point, ...], sizes: list[int]) -> None:
    single = len({point.verify_width for point in points}) == 1 or kind == "prefill"
    shortest = min(point.context for point in points)
    axis.set_title(UNITS[kind])
    axis.set_xlabel("tokens of the prompt" if kind == "prefill" else "tokens of the pass (verify width x batch)")
    axis.set_ylabel("milliseconds")
    axis.set_xscale("log", base=2)
    for place, batch in enumerate(sizes):
        mine = [point for point in points if point.batch == batch and point.context <= 1.3 * shortest + 1]
        if not mine:
            continue
        tokens = np.array([point.tokens for point in mine])
        bars = [[point.ms - point.low for point in mine], [point.high - point.ms for point in mine]]
        shade = colour(kind) if kind == "prefill" else f"C{place}"
        label = None if kind == "prefill" else f"batch {batch}"
        middle = [point.ms for point in mine]
        axis.errorbar(tokens, middle, yerr=bars, fmt=MARKS[place % len(MARKS)], color=shade, ms=4, label=label)
        if not single:
            across = np.geomspace(tokens.min(), tokens.max(), 60)
            axis.plot(across, _told(model, kind, across / batch, batch, shortest), color=shade, lw=1)
    if single:
        ends = [point.tokens for point in points]
        across = np.geomspace(min(ends), max(ends), 60)
        width = points[0].verify_width
        told = (across, 1, 0) if kind == "prefill" else (width, across / width, shortest)
        axis.plot(across, _told(model, kind, *told), color=colour(kind), lw=1)
    axis.set_ylim(bottom=0)


def _told(model: CostModel, kind: str, width: Any, batch: Any, context: float) -> Any:
    return model.step_ms(kind, width, batch, context, extrapolate=True)


def _errors(kind: str, each: Mapping[str, Any]) -> dict[str, str]:
    error = each["error"]
    return {
        "Step": kind,
        "Points": str(len(each["points"])),
        "Median residual": _percent(error["median_residual"], sign=False),
        "Worst residual": _percent(error["worst_residual"], sign=False),
        "Median left out": _percent(error["median_left_out"], sign=False),
        "Worst left out": _percent(error["worst_left_out"], sign=False),
    }


def _formula(fit: Mapping[str, Any]) -> list[str]:
    """The fitted parameters in words."""
    terms = [f"{fit['base']:.4g}"]
    for name, part in (("t", fit["tokens"]), ("b", fit["rows"])):
        for knot, slope in zip(part["knots"], part["slopes"], strict=True):
            terms.append(f"{slope:.4g} max(0, {name} - {knot:g})")
    reads = (("context_alone", "c"), ("row_context", "b c"), ("token_context", "t c"))
    reading = [f"{fit[key]:.4g} {name}" for key, name in reads if fit.get(key)]
    ranges = ", ".join(f"{axis} {low:g} to {high:g}" for axis, (low, high) in fit["measured"].items())
    return [f"`ms = {' + '.join(terms + reading)}`", "", f"Measured: {ranges.replace('_', ' ')}."]


def _row(point: Point, residual: float, left_out: float | None) -> dict[str, str]:
    stages = point.stages or {}
    row = {
        "Width": str(point.verify_width),
        "Batch": str(point.batch),
        "Context": f"{point.context:.0f}",
        "ms": number(point.ms, 3),
        "low": number(point.low, 3),
        "high": number(point.high, 3),
        "n": str(point.n),
        **{stage: number(stages.get(stage), 3) for stage in STAGES},
        "residual": _percent(residual),
        "left out": _percent(left_out),
    }
    return row


def _percent(value: float | None, sign: bool = True) -> str:
    if value is None:
        return NOTHING
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"
