"""``check=true``: some of the replayed shapes decoded on the engine too, and compared request by request.

At temperature 0 every request must agree in its text and in every count. Above it a draw inverts a distribution, and
where the uniform number falls among tokens of tiny probability the last digits of a logit decide: a live run may then
emit another text than the recorded one, and another text has other rounds. Such requests are counted apart
(``other_text``); on those that emit the recorded text the counts must agree.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ddbench.decoding import Generation, ModelPair, Strategy, decode
from ddbench.replay import Outcome, TraceSet
from ddbench.storage import write_whole
from ddbench.tree import build_tree_heap
from experiments.progress import say
from experiments.record.prompts import gather
from experiments.record.recorders import ReferenceRecorder, requests_of
from experiments.replay.points import Point, strategy_of
from experiments.replay.settings import Asked

if TYPE_CHECKING:
    from ddbench.decoding import Request


def check(asked: Asked, points: Sequence[Point], path: Path) -> dict[str, Any]:
    """Decodes ``replay.check_shapes`` of the points; writes ``path`` and returns its totals."""
    drafting = [point for point in points if point.planned.cell.arm.drafter]
    if asked.settings.engine.name == "sglang":
        from experiments.replay.check_sglang import check as on_sglang

        return on_sglang(asked, drafting, path)
    chosen = spread(drafting, asked.replay.check_shapes)
    source = gather(asked.settings, asked.folder.path)
    engine = ReferenceRecorder(source.spec).engine
    rows = []
    for point in chosen:
        cell, strategy = point.planned.cell, strategy_of(point.planned.cell.arm)
        items = [
            ("", item, repeat, cell.temperature)
            for repeat in range(asked.settings.load.repeats)
            for item in engine.prompts
        ]
        requests = requests_of(asked.settings, engine.stop_ids, items)
        assert point.outcome is not None
        row = compare(engine.pair, strategy, requests, point.traces, point.outcome, asked.replay.check_batch_size)
        rows.append({"temperature": cell.temperature, **row})
        verdict = "equal" if row["equal"] else "NOT EQUAL"
        say(f"check {strategy} T={cell.temperature:g}: {verdict}, {row['other_text']} with another text")
    totals = totalled(rows)
    write_whole(path, json.dumps({**totals, "shapes": rows}, indent=1) + "\n")
    return totals


def totalled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the rows of :func:`compare` come to."""
    return {
        "shapes_checked": len(rows),
        "shapes_equal": sum(row["equal"] for row in rows),
        "requests_compared": sum(row["requests"] - row["other_text"] for row in rows),
        "requests_with_another_text": sum(row["other_text"] for row in rows),
        "rounds_compared": sum(row["rounds"] for row in rows),
        "live_seconds": sum(row["live_seconds"] for row in rows),
    }


def spread(points: Sequence[Point], count: int) -> list[Point]:
    """``count`` of them, evenly over their order: the same ones always."""
    if len(points) <= count:
        return list(points)
    return [points[int(place)] for place in np.linspace(0, len(points) - 1, count).round()]


def compare(
    pair: ModelPair,
    strategy: Strategy,
    requests: Sequence[Request],
    traces: TraceSet,
    outcome: Outcome,
    batch_size: int,
) -> dict[str, Any]:
    """One shape decoded live against its replay. ``equal``: every request with the recorded text agrees in all counts,
    and at temperature 0 there is no other.

    ``differences`` lists the first few that do not, each with the round where they part and the ``gap`` that decided
    it there: by how much the score of the node in question and that of the last node of the budget differ.
    """
    clock = time.perf_counter()
    generations = decode(pair, strategy, requests, batch_size)
    seconds = time.perf_counter() - clock
    differences, other, rounds = [], 0, 0
    sampled = requests[0].sampling.temperature > 0
    for place, (generation, trace) in enumerate(zip(generations, traces.traces, strict=True)):
        if list(generation.output_token_ids) != trace.output.tolist():
            other += 1
            continue
        rounds += len(generation.rounds)
        if counts(generation, traces.depth) != replayed(outcome, place):
            differences.append(explain(generation, strategy, traces, place))
    return {
        "strategy": strategy.name,
        **{name: getattr(strategy, name) for name in ("width", "depth", "nodes", "force_spine", "min_log_prob")},
        "equal": not differences and (other < len(generations) if sampled else other == 0),
        "requests": len(generations),
        "other_text": other,
        "rounds": rounds,
        "live_seconds": seconds,
        "differences": differences[:5],
    }


def counts(generation: Generation, depth: int) -> tuple[int, ...]:
    """Rounds, drafted, accepted, accepted before clipping, and the histogram's bars."""
    rounds = generation.rounds
    bars = [0] * (depth + 1)
    for each in rounds:
        bars[each.accepted_raw] += 1
    sums = (sum(getattr(each, name) for each in rounds) for name in ("drafted", "accepted", "accepted_raw"))
    return (len(rounds), *sums, *bars)


def replayed(outcome: Outcome, place: int) -> tuple[int, ...]:
    """The same of a replayed request."""
    numbers = (getattr(outcome, name)[place] for name in ("rounds", "drafted", "accepted", "accepted_raw"))
    return (*map(int, numbers), *map(int, outcome.histogram[place]))


def explain(generation: Generation, strategy: Strategy, traces: TraceSet, place: int) -> dict[str, Any]:
    """Where a live request and its replay part."""
    from ddbench.replay.shapes import tables

    trace, found = traces.traces[place], {"prompt_id": traces.traces[place].key.prompt_id}
    (_, accepted, drafted), *_ = tables(traces, [strategy])
    anchor, start = 0, int(traces.starts[place])
    for number, each in enumerate(generation.rounds):
        here = int(accepted[0, start + anchor])
        if each.accepted_raw != here or each.drafted != int(drafted[0, start + anchor]):
            gap = _gap(strategy, trace.log_probs[anchor], trace.ranks[anchor], max(each.accepted_raw, here))
            return {**found, "round": number, "anchor": anchor, "live": each.accepted_raw, "replayed": here, "gap": gap}
        anchor += here + 1
    return {**found, "round": None}


def _gap(strategy: Strategy, log_probs: Any, ranks: Any, length: int) -> float | None:
    """How far the node at ``length`` of the true path is from the edge of the tree, in log-probability."""
    if strategy.name != "ddtree" or length == 0 or (ranks[:length] < 0).any():
        return None
    score = float(log_probs[np.arange(length), ranks[:length]].sum())
    nodes = strategy.nodes or len(log_probs)
    tree = build_tree_heap(
        torch.from_numpy(np.ascontiguousarray(log_probs))[None].clamp(max=0.0),
        nodes,
        strategy.width,
        strategy.depth,
        strategy.min_log_prob,
        strategy.force_spine,
    )
    return abs(score - float(tree.scores[0, int(tree.counts()[0]) - 1]))
