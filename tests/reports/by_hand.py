"""Requests written by hand, for the tests that know each integer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from synthetic import write_status

from ddbench.records import REQUESTS, Cell


def stored_request(
    each: Cell, prompt: str, tokens: int, rounds: int, latency: float, **more: object
) -> dict[str, object]:
    """One row of ``requests.parquet`` with a time to first token of 0.1 s and ids that depend on the prompt alone."""
    return {
        "cell_id": each.cell_id,
        "block": each.block,
        "prompt_id": prompt,
        "turn": 0,
        "dataset": each.workload,
        "repeat": 0,
        "output_tokens": tokens,
        "rounds": rounds,
        "drafted": 4 * rounds,
        "accepted": max(tokens - 1 - rounds, 0) if rounds else 0,
        "accepted_raw": max(tokens - 1 - rounds, 0) if rounds else 0,
        "accept_histogram": [],
        "start_s": 0.0,
        "ttft_s": 0.1,
        "latency_s": latency,
        "output_token_ids": [ord(prompt)] * tokens,
        **more,
    }


def write_requests(run: Path, each: Cell, rows: list[dict[str, object]]) -> None:
    folder = write_status(run, each, "ok")
    pq.write_table(pa.Table.from_pylist(rows, schema=REQUESTS), folder / "requests.parquet")
