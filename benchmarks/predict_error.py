"""How far predicted speeds are from decoding, on the packaged tiny pair and prompts held out from training.

One process, one thread, in turns, so that a machine that slows down slows both sides:

* a recording, and the rounds of every shape replayed from it;
* step costs with a pinned acceptance, on random text, fitted (experiment=step_cost);
* every shape decoded live at every batch size, real text, real acceptance.

The prediction of a shape at a batch size is a closed loop of the replayed rounds under the fitted costs
(`ddbench.cost.loop`); nothing of the live runs is in it. Seconds are CPU seconds of this process (what an idle core
would need), since on a shared machine the wall clock measures the others; ``--clock wall`` on an idle one.

    python benchmarks/predict_error.py
    python benchmarks/predict_error.py --prompts 12 --turns 3 --batches 1 4

The last line on standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from replay_speed import ASSETS, recorded, requests_of, say

from ddbench.cost import prefill_of
from ddbench.cost.file import save_cost
from ddbench.cost.fit import quality_of
from ddbench.cost.loop import Requests, closed_loop
from ddbench.cost.model import CostModel
from ddbench.decoding import Generation, ModelPair, Strategy, decode, load_pair
from ddbench.metrics import verify_width
from ddbench.replay import TraceSet, load_trace, replay
from experiments.step_cost.grid import Step
from experiments.step_cost.pinned import Timed
from experiments.step_cost.reference import CLOCKS, WARM_STEPS, points_of, random_text, turn

NODES, CHAINS, CONTEXTS, PREFILLS = (8, 16, 32, 64), (7, 15), (16, 128), (16, 48, 112)
MOST_TOKENS = 600


def shapes() -> list[Strategy]:
    chains = [Strategy("dflash", depth=depth) for depth in CHAINS]
    trees = [Strategy("ddtree", depth=15, nodes=nodes) for nodes in NODES]
    return [Strategy("autoregressive"), *chains, *trees]


def width_of(strategy: Strategy) -> int:
    width = verify_width(strategy.name, strategy.depth, strategy.nodes)
    assert width is not None
    return width


def steps_of(batches: list[int]) -> list[Step]:
    """The grid: every shape's width at the first context, the ends of widths and batch sizes at the others."""
    found = []
    for strategy in shapes():
        width = width_of(strategy)
        sizes = [batch for batch in batches if width * batch <= MOST_TOKENS]
        found += [Step(strategy.name, width, batch, CONTEXTS[0]) for batch in sizes]
        if strategy.name == "autoregressive" or width in (1 + CHAINS[-1], 1 + NODES[0], 1 + NODES[-1]):
            ends = dict.fromkeys((sizes[0], sizes[-1]))
            found += [Step(strategy.name, width, batch, context) for context in CONTEXTS[1:] for batch in ends]
    return found + [Step("prefill", length, 1, 0) for length in PREFILLS]


def measure(pair: ModelPair, options: argparse.Namespace) -> dict[str, Any]:
    clock = CLOCKS[options.clock]
    requests = requests_of(pair, options.prompts, options.tokens)
    with tempfile.TemporaryDirectory() as folder:
        traces = TraceSet.of([load_trace(path) for path in recorded(pair, requests, max(NODES), 64, Path(folder))])
    steps = steps_of(options.batches)
    text = random_text(pair, steps, 0)
    turn(pair, steps, text, WARM_STEPS, options.accepted, clock)
    cells = [(strategy, batch) for batch in options.batches for strategy in shapes()]
    cells = [(strategy, batch) for strategy, batch in cells if width_of(strategy) * batch <= MOST_TOKENS]
    turns, live = [], dict[tuple[Strategy, int], list[list[Generation]]]()
    for number in range(options.turns):
        way = 1 if number % 2 == 0 else -1
        measured: dict[Step, Timed] = {}
        for size in options.batches[::way]:  # costs and live runs of a batch size side by side
            mine = [step for step in steps if step.batch == size]
            measured |= turn(pair, mine[::way], text, options.steps, options.accepted, clock)
            for strategy, batch in [cell for cell in cells[::way] if cell[1] == size]:
                live.setdefault((strategy, batch), []).append(decode(pair, strategy, requests, batch, clock=clock))
        measured |= turn(pair, [s for s in steps if s not in measured], text, options.steps, options.accepted, clock)
        turns.append(measured)
        say(f"turn {number + 1} of {options.turns}")
    with tempfile.TemporaryDirectory() as folder:
        cost = save_cost(Path(folder) / "cost.json", {}, points_of(turns), {})
    outcomes = dict(zip(shapes(), replay(traces, shapes()), strict=True))
    rows = [row(cell, live[cell], outcomes[cell[0]], traces, cost) for cell in cells]
    errors = np.abs([each["error"] for each in rows])
    q1, median, q3 = np.percentile(errors, (25, 50, 75)).tolist()
    fits = {kind: quality_of(fit, cost.points[kind]).summary() for kind, fit in cost.fits.items()}
    return {
        "benchmark": "predict_error",
        "cells": len(rows),
        "median_error": round(median, 4),
        "q1": round(q1, 4),
        "q3": round(q3, 4),
        "worst": round(float(errors.max()), 4),
        "clock": options.clock,
        "prompts": len(requests),
        "turns": options.turns,
        "fits": {kind: {k: None if v is None else round(v, 4) for k, v in each.items()} for kind, each in fits.items()},
        "rows": rows,
    }


def row(
    cell: tuple[Strategy, int], runs: list[list[Generation]], outcome: Any, traces: TraceSet, cost: CostModel
) -> dict[str, Any]:
    """Predicted and measured tokens/s per user of one cell; the measured is the median over turns."""
    strategy, batch = cell
    output = np.array([len(trace.output) for trace in traces.traces])
    plain = strategy.name == "autoregressive"
    rounds = output - 1 if plain else np.asarray(outcome.rounds)
    asked = Requests(np.array([trace.prompt_tokens for trace in traces.traces]), output, rounds)
    clocks = closed_loop(asked, batch, cost.fit(strategy.name), width_of(strategy), prefill_of(cost))
    predicted = clocks.tokens_per_s_per_user(asked)
    assert predicted is not None
    measured = float(np.median([speed(run) for run in runs]))
    same = np.mean([len(each.rounds) == count for each, count in zip(runs[0], rounds, strict=True)])
    return {
        "strategy": strategy.name,
        "verify_width": width_of(strategy),
        "batch_size": batch,
        "measured": round(measured, 2),
        "predicted": round(predicted, 2),
        "error": round(predicted / measured - 1, 4),
        "same_rounds": 1.0 if plain else round(float(same), 3),
    }


def speed(run: list[Generation]) -> float:
    """Decode tokens a second of the clock, as one request sees it."""
    emitted = sum(len(each.output_token_ids) - 1 for each in run)
    return emitted / sum(each.finish_s - each.first_token_s for each in run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48, help="new tokens a request at most")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps of a repeat of a step cost")
    parser.add_argument("--accepted", type=int, default=3, help="drafted tokens that a round of a step cost keeps")
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    found = measure(load_pair(ASSETS / "target", ASSETS / "dflash"), options)
    for each in found["rows"]:
        shape = f"{each['strategy']:>14} {each['verify_width']:>3} batch {each['batch_size']:>2}"
        told = f"measured {each['measured']:8.1f} predicted {each['predicted']:8.1f} tokens/s"
        sys.stdout.write(f"{shape}: {told}, {100 * each['error']:+6.1f} %, same rounds {each['same_rounds']:.2f}\n")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
