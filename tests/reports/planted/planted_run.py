"""SYNTHETIC run folders of the planted engine: one scenario a draw, stored as a real run stores its cells."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from planted_engine import ARMS, DEPTH, MOST_TOKENS, NODES, PROMPTS, Draws

from ddbench.records import REQUESTS, Arm, Cell


def write(run: Path, draws: Draws, blocks: int) -> None:
    """The files of a run that measured every draw as a workload of its own."""
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump({"name": "synthetic", "synthetic": True}))
    (run / "environment.json").write_text(json.dumps({"synthetic": True, "command": "SYNTHETIC"}))
    for draw in range(len(draws.tokens)):
        for arm in ARMS:
            for block in range(blocks):
                _write_cell(run, cell(arm, draw, block), draws, arm, draw, block)


def cell(arm: str, draw: int, block: int) -> Cell:
    tree = arm == "ddtree"
    return Cell(
        arm=Arm(
            engine="synthetic",
            engine_version="SYNTHETIC",
            strategy=arm,
            width=2 if tree else None,
            depth=DEPTH.get(arm),
            nodes=NODES[arm] if tree else None,
            force_spine=False,
            min_log_prob=None,
            model="synthetic",
            target="synthetic",
            target_revision=None,
            drafter=None if arm == "autoregressive" else "synthetic",
            drafter_revision=None,
            host="synthetic",
            flags={},
        ),
        workload=f"synthetic-{draw}",
        prompts_hash=f"synthetic-{draw}",
        prompts=PROMPTS,
        batch_size=1,
        max_new_tokens=MOST_TOKENS + 1,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=0,
        repeats=1,
        block=block,
    )


def _write_cell(run: Path, each: Cell, draws: Draws, arm: str, draw: int, block: int) -> None:
    folder = run / "cells" / each.cell_id
    folder.mkdir(parents=True)
    (folder / "cell.yaml").write_text(yaml.safe_dump(asdict(each)))
    status = {"status": "ok", "reason": None, "log": None, "started": f"2026-01-01T0{block}:00:00+00:00"}
    (folder / "status.json").write_text(json.dumps({**status, "seconds": 1.0, "gpu": None, "peak_memory_gib": None}))
    counts = draws.counts(arm, draw, block)
    rows = [_request(each, counts, i) for i in range(PROMPTS)]
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), folder / "requests.parquet")


def _request(each: Cell, counts: Any, i: int) -> dict[str, Any]:
    whole = ("output_tokens", "rounds", "drafted", "accepted", "accepted_raw")
    clocks = ("start_s", "ttft_s", "latency_s")
    return {
        "cell_id": each.cell_id,
        "block": each.block,
        "prompt_id": f"p{i:03d}",
        "turn": 0,
        "repeat": 0,
        "seed": 0,
        "dataset": each.workload,
        "category": ("code", "prose")[i % 2],
        "prompt_tokens": 10,
        "finish_reason": "stop",
        "cached_tokens": 0,
        "output_token_ids": [(7 * i + 13 * j) % 101 for j in range(int(counts.output_tokens[i]))],
        "accept_histogram": counts.histogram[i].astype(int).tolist(),
        **{name: int(getattr(counts, name)[i]) for name in whole},
        **{name: float(getattr(counts, name)[i]) for name in clocks},
    }
