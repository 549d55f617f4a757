"""What a reader must know beside the answer: what was not run, what cannot be, what was not checked, which load."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ddbench.records import STRATEGIES
from reports.aggregate import Analysis
from reports.choose import labelled
from reports.comparable import alike
from reports.frames import Stored, flag, records
from reports.sections import trust
from reports.sections.text import LONGEST, counted, inline, literal
from reports.starts import changes, starts

MOST_REASONS = 2  # on the first page; the table of points that are not ok has all
MOST_CHANGES = 6  # the table of starts has all


def section(stored: Stored, analysis: Analysis) -> list[str]:
    """Each note a quotation of its own; no section where all went as planned."""
    found = [
        *_not_run(stored),
        *_changed(stored),
        *_machine(stored),
        *_unsupported(stored),
        *_suspect(analysis),
        *trust.notes(analysis),
        *_apart(analysis),
        *_refused(analysis),
        *_attached(analysis),
        *_rivals(analysis),
        *_arrivals(stored),
        *_one_block(analysis),
        *_short_windows(analysis),
    ]
    if not found:
        return []
    return ["## Before you believe it", "", *(line for note in found for line in (f"> {note}", ""))]


def _not_run(stored: Stored) -> list[str]:
    """How many of the planned cells the run has not come to, and of which strategies."""
    if not stored.not_run:
        return []
    missing = Counter(str(row.get("strategy")) for row in stored.not_run)
    order = [name for name in STRATEGIES if name in missing] + sorted(missing.keys() - set(STRATEGIES))
    parts = ", ".join(f"{name} {missing[name]}" for name in order)
    run_id = stored.config.get("run_id") or stored.run.resolve().name
    return [
        f"**{len(stored.not_run)} of {stored.planned} planned cells were not run: {parts}.** What follows rests on the "
        f"others alone; the command that planned them goes on with `run_id={run_id}`."
    ]


def _changed(stored: Stored) -> list[str]:
    """What one start of the run found otherwise than another: their cells stand side by side on the page."""
    told = changes(found := starts(stored))
    if not told:
        return []
    order = sorted(told, key=lambda name: (not name.startswith("git_"), name))
    parts = [
        f"`{name}` {' then '.join(dict.fromkeys(literal(value, LONGEST) for value in told[name]))}"
        for name in order[:MOST_CHANGES]
    ]
    more = f"; and {len(order) - MOST_CHANGES} more keys" if len(order) > MOST_CHANGES else ""
    return [
        f"**The run was started {len(found)} times, and not everything stayed the same: {'; '.join(parts)}{more}.** "
        "Cells of different starts are set against one another as if nothing had changed; "
        "[Provenance](#provenance) lists the starts."
    ]


def _machine(stored: Stored) -> list[str]:
    """Where the host was not as configured, or not ours alone, at any start."""
    told = [start.environment.get("host_warnings") for start in starts(stored)]
    lines = list(dict.fromkeys(literal(line) for each in told if isinstance(each, list) for line in each))
    return [f"**The machine is not as its configuration says, or was shared: {'; '.join(lines)}.**"] if lines else []


def _unsupported(stored: Stored) -> list[str]:
    """A line for each strategy of which nothing, or not everything, can be run, and why."""
    lines = []
    for (engine, strategy), group in stored.cells.groupby(["engine", "strategy"], sort=False):
        refused = group[group["status"] == "unsupported"]
        if refused.empty:
            continue
        pending = [row for row in stored.not_run if (row.get("engine"), row.get("strategy")) == (engine, strategy)]
        reasons = sorted({literal(reason) for reason in refused["reason"].dropna()})
        why = "; ".join(reasons[:MOST_REASONS])
        if len(reasons) > MOST_REASONS:
            why += f"; and {len(reasons) - MOST_REASONS} more reasons, in the table of unsupported points"
        if len(refused) == len(group) and not pending:
            lines.append(f"**{strategy} is unsupported on {engine}** and was not run as something else: {why}.")
            continue
        others = [*records(group[group["status"] != "unsupported"]), *pending]
        count = _count(str(strategy), records(refused), others)
        lines.append(f"**{count} unsupported on {engine}**, and nothing else was run instead: {why}.")
    return lines


def _count(strategy: str, refused: list[dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """``4 of 6 eagle shapes are``; in cells where the same shape can be run at another temperature."""
    axes = ("width", "depth", "nodes", "policy")
    cannot, can = ({tuple(row.get(axis) for axis in axes) for row in rows} for rows in (refused, others))
    if cannot & can:
        return f"{len(refused)} of {len(refused) + len(others)} {strategy} cells are"
    return f"{len(cannot)} of {len(cannot | can)} {strategy} shapes {'are' if len(cannot) > 1 else 'is'}"


def _attached(analysis: Analysis) -> list[str]:
    """Names the arms of servers that somebody else started."""
    frame = labelled(analysis.frame)
    measured = [row for row in records(frame) if row["status"] != "unsupported"]
    labels = dict.fromkeys(row["label"] for row in measured if flag(row["flags"], "attached"))
    if not labels:
        return []
    arms = ", ".join(labels)
    return [
        f"**{arms}: measured on a server that was already running (`engine.url`).** Strategy, shape, model and "
        "settings of that server are believed, not checked. Its flags are not known, and no `engine.flags` describe "
        "them; a comparison with another such arm takes for granted that they were equal."
    ]


def _rivals(analysis: Analysis) -> list[str]:
    """Names the trees of a branch of the engine, which state of its sources ran, and what it forced on them."""
    frame = labelled(analysis.frame)
    rows = [row for row in records(frame) if flag(row["flags"], "branch") and row["status"] != "unsupported"]
    trees = [row for row in rows if row["strategy"] == "ddtree"]
    if not trees:
        return []
    versions = ", ".join(dict.fromkeys(literal(row["engine_version"]) for row in rows))
    others = any(flag(row["flags"], "overlap") for row in rows)
    serial = others and not all(flag(row["flags"], "overlap") for row in trees)
    forced = (
        " They run without overlap scheduling, which the branch forces on them, and the other arms with it: no "
        "speed-up is given between the two (`engine.flags.overlap=false` takes it from all)."
    )
    return [
        f"**{', '.join(dict.fromkeys(row['label'] for row in trees))}: trees of somebody else's code, a checkout that "
        f"was named (`engine.checkout`): {versions}.** All arms of its servers ran from those sources, without the "
        "plug-in of ddbench, and what they count is believed where it adds up; nodes drafted are not known."
        + (forced if serial else "")
    ]


def _arrivals(stored: Stored) -> list[str]:
    """Names the load where it is an open loop."""
    rates = [flag(flags, "request_rate") for flags in stored.cells["flags"]]
    found = sorted({float(rate) for rate in rates if rate is not None})
    if not found:
        return []
    where = "Where the title says open loop, requests" if None in rates else "Requests"
    each = " or ".join(f"{rate:g}" for rate in found)
    return [
        f"**{where} arrived at random, {each} a second (`load=open`).** The batch size is a cap on requests in flight, "
        "not their number; aggregate tokens/s is then set by the arrivals and is no speed of the engine."
    ]


def _suspect(analysis: Analysis) -> list[str]:
    """How many points are not trusted, of which strategies, and the commonest reasons."""
    frame = analysis.frame[analysis.frame["status"] == "suspect"]
    if frame.empty:
        return []
    arms = ", ".join(f"{name} {count}" for name, count in frame["strategy"].value_counts(sort=False).items())
    reasons = [literal(reason) for reason, _ in Counter(frame["reason"].dropna()).most_common(MOST_REASONS)]
    why = f": {'; '.join(reasons)}" if reasons else ""
    return [f"**{counted(len(frame), 'point')} suspect ({arms})**{why}. They are shown and never named fastest."]


def _refused(analysis: Analysis) -> list[str]:
    notes = analysis.frame["baseline_note"].fillna("").str.contains("not compared with")
    if not notes.any():
        return []
    return [
        f"**{counted(int(notes.sum()), 'point')} not compared with a baseline** whose settings differ; the differing "
        "keys are under [Refused comparisons](#refused-comparisons)."
    ]


def _one_block(analysis: Analysis) -> list[str]:
    blocks = analysis.frame["blocks"]
    if not len(blocks) or int(blocks.max()) != 1:
        return []
    return [
        "**One block of repetition (n = 1).** Every arm was measured in one go: aggregate throughput has no "
        "interval, and what differs between two starts of the same arm is in no interval of this page "
        "(`load.blocks=3` measures it)."
    ]


def _short_windows(analysis: Analysis) -> list[str]:
    short = analysis.frame["steady_short"].fillna(False).to_numpy(dtype=bool)
    if not short.any():
        return []
    return [
        f"**{int(short.sum())} of {len(short)} points were at their full number of requests for a short time only**: "
        "their aggregate throughput is mostly of the start and the end of the load. More prompts make that time "
        "longer."
    ]


def _apart(analysis: Analysis) -> list[str]:
    """Names the arms whose settings are not those of the others: measured, but in no comparison with them."""
    frame = labelled(analysis.frame)
    others = frame[~alike(frame)]
    if others.empty:
        return []
    arms = ", ".join(dict.fromkeys(inline(str(label)) for label in others["label"]))
    return [
        f"**{counted(len(others), 'point')} with other settings than the rest ({arms})**: measured, listed under All "
        "results, and left out wherever arms are ranked."
    ]
