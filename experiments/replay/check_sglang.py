"""``check=true`` of a recording that SGLang made: the shapes on one server of our plug-in, by the limits of its trees.

The server is captured as wide as the widest of the shapes and writes its live rounds. A chain is a tree of width 1
there, which is verified by other code than stock DFlash. A difference is no fault where the engine's own scores in that
round give the length that it accepted, lie no farther from the recorded ones than rounding puts them, and the recorded
path lay as near to an edge of the tree: then the drafter's context was rounded otherwise than in the recording, as any
other shape of a matrix product does in bfloat16 (`ddbench.replay.engine`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ddbench.decoding import Strategy
from ddbench.errors import ConfigError
from ddbench.plugins.sglang.dumps import ROUNDS
from ddbench.replay.engine import BEHIND, MOST_DRIFT, SCORES, Incomplete, Live, compare
from ddbench.storage import write_whole
from experiments.progress import say
from experiments.record.prompts import gather
from experiments.replay.points import Point, strategy_of
from experiments.replay.settings import Asked
from experiments.shapes import Shape
from runners.base import EngineFailure
from runners.completions import TokenRequest
from runners.sglang.recording import RecordingRunner
from runners.sglang.speculation import MOST_NODES


def check(asked: Asked, points: Sequence[Point], path: Path) -> dict[str, Any]:
    """Decodes ``replay.check_shapes`` of the points; writes ``path`` and returns its totals.

    Raises:
        ConfigError: none of the points can be run so.
    """
    from experiments.replay.check import spread

    able = [point for point in points if _can_run(as_tree(_strategy(point), point.traces.depth))]
    if not able:
        raise ConfigError("check", True, f"shapes without a floor of at most {MOST_NODES} nodes")
    chosen = spread(able, asked.replay.check_shapes)
    trees = [as_tree(_strategy(point), point.traces.depth) for point in chosen]
    widest = max(tree.nodes or 1 for tree in trees)
    source = gather(asked.settings, asked.folder.path, Shape(width=None, depth=None, nodes=widest))
    assert source.arm is not None
    runner = RecordingRunner(source.spec, source.arm, widest)
    rows = []
    try:
        runner.start()
        runner.open()
        for point, tree in zip(chosen, trees, strict=True):
            rows.append(_checked(runner, asked, point, tree))
    finally:
        runner.stop()
    totals = {**totalled(rows), "drift_tolerance_nats": MOST_DRIFT[asked.settings.engine.dtype]}
    write_whole(path, json.dumps({**totals, "shapes": rows}, indent=1) + "\n")
    return totals


def as_tree(strategy: Strategy, depth: int) -> Strategy:
    """What a chain of some length is to a server of trees: one of width 1."""
    if strategy.name != "dflash":
        return strategy
    length = strategy.depth or depth
    return Strategy("ddtree", width=1, depth=length, nodes=length)


def limits_of(tree: Strategy) -> dict[str, int]:
    """A tree as the limits of a server, 0 for none."""
    named = {"width": tree.width, "depth": tree.depth, "nodes": tree.nodes}
    return {**{name: value or 0 for name, value in named.items()}, "force_spine": int(tree.force_spine)}


def totalled(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the rows of `ddbench.replay.engine.compare` come to."""
    differing, explained = (sum(row[name] for row in rows) for name in ("differing", "explained"))
    return {
        "shapes_checked": len(rows),
        "shapes_equal": sum(row["equal"] for row in rows),
        "shapes_equal_where_same_text": sum(row["equal_where_same_text"] for row in rows),
        "requests_compared": sum(row["requests"] - row["other_text"] for row in rows),
        "requests_with_another_text": sum(row["other_text"] for row in rows),
        "requests_differing": differing,
        "explained": explained,
        "explained_by": {why: sum(row["explained_by"][why] for row in rows) for why in (SCORES, BEHIND)},
        "unexplained": differing - explained,
        "rounds_compared": sum(row["rounds"] for row in rows),
        "rounds_by_own_scores": sum(row["rounds_by_own_scores"] for row in rows),
        "rounds_with_another_text_behind_end": sum(row["rounds_with_another_text_behind_end"] for row in rows),
        "acceptance_apart": {part: _apart(rows, part) for part in ("same_text", "all")},
        "live_seconds": round(sum(row["live_seconds"] for row in rows), 3),
    }


def _apart(rows: Sequence[dict[str, Any]], part: str) -> dict[str, float] | None:
    """By how much the replayed tokens per round of a shape are off the live ones, as a share of these."""
    pairs = [(row["acceptance"][part]["live"], row["acceptance"][part]["replayed"]) for row in rows]
    apart = [abs(replayed / live - 1) for live, replayed in pairs if live and replayed]
    return {"median": median(apart), "worst": max(apart)} if apart else None


def _strategy(point: Point) -> Strategy:
    return strategy_of(point.planned.cell.arm)


def _can_run(tree: Strategy) -> bool:
    """A floor under the scores cannot be set while a server runs."""
    return tree.min_log_prob is None and (tree.nodes or 0) <= MOST_NODES


def _checked(runner: RecordingRunner, asked: Asked, point: Point, tree: Strategy) -> dict[str, Any]:
    load = asked.settings.load
    stops = tuple(sorted(runner.stop_ids))
    requests = [
        TokenRequest(item.token_ids, load.max_new_tokens, ignore_eos=not stops, stop_ids=stops)
        for _ in range(load.repeats)
        for item in runner.prompts
    ]
    runner.set(record=ROUNDS, **limits_of(tree))
    clock = time.perf_counter()
    told = runner.told(requests, asked.replay.check_batch_size)
    seconds = time.perf_counter() - clock
    lives = [Live(each.completion.token_ids, each.rounds, _bars(each.completion)) for each in told]
    assert point.outcome is not None
    try:
        row = compare(_strategy(point), point.traces, point.outcome, lives, asked.settings.engine.dtype)
    except Incomplete as error:
        raise EngineFailure(f"the live rounds are not whole: {error}") from None
    verdict = "equal" if row["equal_where_same_text"] else f"{row['differing']} differ, {row['explained']} explained"
    say(f"check {_strategy(point)}: {verdict}, {row['other_text']} with another text, in {seconds:.1f} s")
    return {"temperature": 0.0, **row, "live_seconds": seconds}


def _bars(completion: Any) -> tuple[int, ...] | None:
    return None if completion.speculation is None else tuple(completion.speculation.histogram)
