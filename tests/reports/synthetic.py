"""SYNTHETIC runs: the stored schema filled from a made-up cost model, for the tests of reports. Nothing was measured.

Every prompt has a difficulty; a drafted token at rank r is right with a probability that falls with r; a round takes
``draft + build * nodes + verify * (1 + slope * batch * verify width)``. Greedy arms share one text per prompt, so they
differ in rounds and time alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ddbench.records import REQUESTS, ROUNDS, TELEMETRY, Arm, Cell

REVISION = "0" * 40


@dataclass(frozen=True)
class Plan:
    """What a synthetic run holds."""

    shapes: dict[str, list[tuple[int | None, int | None, int | None]]] = field(default_factory=lambda: dict(SHAPES))
    batch_sizes: tuple[int, ...] = (1, 4, 8)
    temperatures: tuple[float, ...] = (0.0,)
    prompts: int = 12
    turns: int = 1
    blocks: int = 1
    max_new_tokens: int = 64
    model: str = "tiny"
    workload: str = "synthetic"
    with_rounds: bool = True
    seed: int = 7


SHAPES: dict[str, list[tuple[int | None, int | None, int | None]]] = {
    "autoregressive": [(None, None, None)],
    "dflash": [(None, 3, None), (None, 7, None)],
    "eagle": [(1, 4, 4), (4, 4, 16), (4, 6, 32)],
    "ddtree": [(w, d, n) for w in (1, 2, 4, None) for d in (3, 7) for n in (8, 16, 32)],
}


def arm(strategy: str, width: int | None, depth: int | None, nodes: int | None, **changes: Any) -> Arm:
    drafter = {"autoregressive": None, "eagle": "synthetic-eagle3"}.get(strategy, "synthetic-dflash")
    base = Arm(
        engine="reference",
        engine_version="0.1.0",
        strategy=strategy,
        width=width,
        depth=depth,
        nodes=nodes,
        force_spine=False,
        min_log_prob=None,
        model="tiny",
        target="synthetic-target",
        target_revision=REVISION,
        drafter=drafter,
        drafter_revision=REVISION if drafter else None,
        host="local",
        flags={"device": "cpu", "dtype": "float32", "threads": 2},
    )
    return replace(base, **changes)


def cell(plan: Plan, system: Arm, batch_size: int, temperature: float = 0.0, block: int = 0) -> Cell:
    return Cell(
        arm=replace(system, model=plan.model),
        workload=plan.workload,
        prompts_hash="synthetic",
        prompts=plan.prompts,
        batch_size=batch_size,
        max_new_tokens=plan.max_new_tokens,
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        seed=plan.seed,
        repeats=1,
        block=block,
    )


def write_run(run: Path, plan: Plan | None = None) -> list[Cell]:
    """A whole synthetic run below ``run``; returns its cells."""
    plan = plan or Plan()
    run.mkdir(parents=True)
    config = {"experiment": {"name": "synthetic"}, "seed": plan.seed, "synthetic": True}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    environment = {
        "synthetic": True,
        "python": "3.12.0",
        "packages": {"torch": "2.13.0", "ddbench": "0.1.0"},
        "cpu": "SYNTHETIC CPU",
        "command": "python -m ddbench experiment=smoke",
    }
    (run / "environment.json").write_text(json.dumps(environment))
    cells = [
        cell(plan, arm(strategy, *shape), batch, temperature, block)
        for strategy, shapes in plan.shapes.items()
        for shape in shapes
        for batch in plan.batch_sizes
        for temperature in plan.temperatures
        for block in range(plan.blocks)
    ]
    for each in cells:
        write_cell(run, plan, each)
    return cells


def write_cell(run: Path, plan: Plan, each: Cell) -> None:
    """One finished cell with its requests, rounds and telemetry."""
    requests, rounds = simulate(plan, each)
    folder = write_status(run, each, "ok", seconds=max(row["start_s"] + row["latency_s"] for row in requests))
    pq.write_table(pa.Table.from_pylist(requests, schema=REQUESTS), folder / "requests.parquet")
    if plan.with_rounds and rounds:
        pq.write_table(pa.Table.from_pylist(rounds, schema=ROUNDS), folder / "rounds.parquet")
    telemetry = [{"cell_id": each.cell_id, "time_s": float(t), "name": "cpu_percent", "value": 80.0} for t in range(3)]
    pq.write_table(pa.Table.from_pylist(telemetry, schema=TELEMETRY), folder / "telemetry.parquet")


def write_status(run: Path, each: Cell, status: str, reason: str | None = None, seconds: float = 1.0) -> Path:
    """A cell's folder with ``cell.yaml`` and ``status.json`` alone."""
    folder = run / "cells" / each.cell_id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cell.yaml").write_text(yaml.safe_dump(asdict(each)))
    log = f"cells/{each.cell_id}/server.log" if status in ("failed", "suspect") else None
    stored = {"status": status, "reason": reason, "log": log, "started": "2026-01-01T00:00:00Z", "seconds": seconds}
    (folder / "status.json").write_text(json.dumps({**stored, "gpu": None, "peak_memory_gib": 0.5}))
    return folder


def simulate(plan: Plan, each: Cell) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of ``requests.parquet`` and ``rounds.parquet`` of one cell, in a closed loop of ``batch_size`` users."""
    user_free = np.zeros(each.batch_size)
    requests, rounds = [], []
    for index in range(plan.prompts):
        for turn in range(plan.turns):
            rng = np.random.default_rng([plan.seed, index, turn, each.block, int(each.temperature * 10)])
            length = int(min(plan.max_new_tokens, 20 + rng.geometric(1 / 40)))
            ids = rng.integers(0, 512, length).tolist()
            user = int(np.argmin(user_free))
            drawn = np.random.default_rng([plan.seed, index, turn, each.block, int(each.cell_id[:8], 16)])
            request, own_rounds = _request(
                each, index, turn, ids, float(user_free[user]), 0.5 + 0.45 * rng.random(), drawn
            )
            user_free[user] += request["latency_s"]
            requests.append(request)
            rounds += own_rounds
    return requests, rounds


def _request(
    each: Cell, index: int, turn: int, ids: list[int], start: float, skill: float, rng: np.random.Generator
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    key = {"cell_id": each.cell_id, "block": each.block, "prompt_id": f"p{index:03d}", "turn": turn, "repeat": 0}
    depth, nodes = _shape(each)
    width = each.arm.width or nodes
    ttft = 0.02 + 0.001 * each.batch_size
    left, decode, rows = len(ids) - 1, 0.0, []
    histogram = [0] * (depth + 1)
    while left > 0 and depth > 0:
        accepted_raw = 0
        while accepted_raw < depth and rng.random() < _chance(each, skill, width, nodes, accepted_raw):
            accepted_raw += 1
        emitted = min(accepted_raw + 1, left)
        accepted = min(accepted_raw, emitted)
        stages = _stages(each, nodes, rng)
        decode += sum(stages.values()) * 1.03
        histogram[accepted_raw] += 1
        counts = {"drafted": nodes, "tree_depth": depth, "accepted": accepted, "accepted_raw": accepted_raw}
        in_flight = each.batch_size
        rows.append({**key, "round": len(rows), **counts, "emitted": emitted, "in_flight": in_flight, **stages})
        left -= emitted
    if depth == 0:
        decode = left * (0.008 + 0.0006 * each.batch_size) * (1 + 0.02 * rng.standard_normal())
    request = {
        **key,
        "dataset": each.workload,
        "category": ("code", "prose", "list")[index % 3],
        "seed": each.seed,
        "prompt_tokens": 30,
        "output_tokens": len(ids),
        "rounds": len(rows),
        "drafted": sum(row["drafted"] for row in rows),
        "accepted": sum(row["accepted"] for row in rows),
        "accepted_raw": sum(row["accepted_raw"] for row in rows),
        "accept_histogram": histogram,
        "start_s": start,
        "ttft_s": ttft,
        "latency_s": ttft + decode,
        "finish_reason": "length" if len(ids) == each.max_new_tokens else "stop",
        "cached_tokens": 0,
        "output_token_ids": ids,
        "error": None,
    }
    return request, rows


def _shape(each: Cell) -> tuple[int, int]:
    """(deepest path, drafted nodes) of the cell's arm."""
    depth = each.arm.depth or 0
    return depth, each.arm.nodes or depth


def _chance(each: Cell, skill: float, width: int, nodes: int, level: int) -> float:
    """Probability that the target's next token is among the children that the tree has at this level."""
    depth, _ = _shape(each)
    children = min(width, max(1.0, nodes / max(depth, 1)))
    fade = 0.97**level * (0.92 if each.arm.strategy == "eagle" else 1.0)
    return float(1 - (1 - skill * fade) ** (0.55 + 0.45 * children**0.7))


def _stages(each: Cell, nodes: int, rng: np.random.Generator) -> dict[str, float]:
    draft_passes = (each.arm.depth or 1) if each.arm.strategy == "eagle" else 1
    noise = 1 + 0.02 * abs(rng.standard_normal())
    return {
        "draft_s": 0.002 * draft_passes * noise,
        "build_s": 0.00001 * nodes * each.batch_size,
        "verify_s": (0.008 + 0.0001 * each.batch_size * (nodes + 1)) * noise,
        "commit_s": 0.0005,
    }
