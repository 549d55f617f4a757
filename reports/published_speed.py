"""The page of published acceptance lengths at measured step times, from ``published.json`` alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.figures.predicted import MARK
from reports.sections.text import NOTHING, literal, number, table
from reports.write import write_page

BANNER = (
    f"**{MARK}, not measured.** Acceptance lengths are what others published, round times come from a fitted step "
    "cost; no engine ran any of these points. Each set is one harness and stands alone: shapes compare within a set."
)


def write_published(folder: Path) -> Path:
    """Writes ``report.md`` (HTML beside it); where the page is."""
    told = json.loads((folder / "published.json").read_text(encoding="utf-8"))
    setup = told["cost"]
    lines = [
        f"# {MARK}: published acceptance lengths at measured round times, {literal(told['model'])}",
        "",
        BANNER,
        "",
        f"Times: {literal(setup.get('engine_version'))} on {literal(setup.get('device'))}, "
        f"{literal(setup.get('dtype'))}, at {told['context']:g} committed tokens a sequence, the batch full, no prompt "
        f"read. Temperature {told['temperature']:g}.",
        "",
    ]
    for each in told["sets"]:
        lines += _set(each, told["card"])
    page = folder / "report.md"
    write_page(page, "\n".join(lines))
    return page


def _set(told: Mapping[str, Any], card: str | None) -> list[str]:
    return [
        f"## {literal(told['name'])} ({MARK})",
        "",
        f"Lengths: {literal(told['source'])}.",
        "",
        *table([_best(each) for each in told["best"]]),
        "",
        *[line for each in told["pays"] for line in (_pays(each), "")],
        *table([_point(each) for each in told["points"]]),
        "",
        *_elsewhere(told["elsewhere"], card),
    ]


def _best(each: Mapping[str, Any]) -> dict[str, str]:
    over = ", ".join(f"{name} {100 * value:+.0f} %" for name, value in each["margin_over"].items())
    return {
        "Batch": str(each["batch_size"]),
        f"Best shape ({MARK})": each["shape"],
        f"Tokens/s per user ({MARK})": number(each["tokens_per_s_per_user"], 1),
        "over the best of": over or NOTHING,
        "outside": "yes" if each["outside"] else "",
    }


def _pays(each: Mapping[str, Any]) -> str:
    """Where a strategy stops, and starts, to pay against autoregressive decoding; sizes that were not measured."""
    turns = [(size, "stops paying at batch") for size in each["stops_paying_at"]]
    turns += [(size, "pays from batch") for size in each.get("starts_paying_at", [])]
    sizes = ", ".join(map(str, each.get("outside", [])))
    beyond = f" Outside of what the cost was measured in: batch {sizes}." if sizes else ""
    if turns:
        said = ", ".join(f"{words} {size:g}" for size, words in sorted(turns))
        return f"{each['strategy']} against autoregressive decoding: {said} ({MARK}, interpolated).{beyond}"
    words = "pays" if each["pays_at_the_smallest"] else "does not pay"
    return f"{each['strategy']} {words} at every batch size up to {each['largest']} ({MARK}).{beyond}"


def _point(each: Mapping[str, Any]) -> dict[str, str]:
    return {
        "Batch": str(each["batch_size"]),
        "Shape": each["shape"],
        "Acceptance length (published)": number(each["acceptance_length"]),
        f"Round ms ({MARK})": number(each["round_ms"], 2),
        f"Tokens/s per user ({MARK})": number(each["tokens_per_s_per_user"], 1),
        f"Tokens/s ({MARK})": number(each["tokens_per_s"], 0),
        "x autoregressive": number(each["speedup_vs_autoregressive"]),
        "x chain": number(each["speedup_vs_dflash"]),
        "outside": "yes" if each["outside"] else "",
    }


def _elsewhere(found: list[Mapping[str, Any]], card: str | None) -> list[str]:
    if not found:
        return []
    rows = [
        {
            "Batch": str(each["batch_size"]),
            "Shape": each["shape"],
            f"Tokens/s per user, the excess stays ({MARK})": number(each["stays"], 0),
            f"the excess scales ({MARK})": number(each["scales"], 0),
            "expected within": f"{each['low']:.0f} to {each['high']:.0f}",
            "outside": "yes" if each["outside"] else "",
        }
        for each in found
    ]
    return [f"### On {literal(card)}, a card that nothing was measured on ({MARK})", "", *table(rows), ""]
