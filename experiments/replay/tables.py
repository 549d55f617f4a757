"""What a replay stores: ``requests.parquet`` of a cell as a live one has it, clocks null; and the surface of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ddbench.records import REQUESTS, Cell
from ddbench.replay import Outcome, TraceSet
from experiments.replay.points import Point

SURFACE = pa.schema(
    [
        ("strategy", pa.string()),
        ("width", pa.int32()),
        ("depth", pa.int32()),
        ("nodes", pa.int32()),
        ("force_spine", pa.bool_()),
        ("min_log_prob", pa.float64()),
        ("temperature", pa.float64()),
        ("replayed", pa.bool_()),  # always true
        ("requests", pa.int32()),
        ("output_tokens", pa.int64()),
        ("rounds", pa.int64()),
        ("drafted", pa.int64()),
        ("accepted", pa.int64()),
        ("accepted_raw", pa.int64()),
        ("accept_histogram", pa.list_(pa.int64())),  # [a] = rounds that accepted a drafted tokens, before clipping
    ]
)


class RequestTables:
    """Tables of the cells of one trace set: what they have in common is made once."""

    def __init__(self, traces: TraceSet) -> None:
        keys = [trace.key for trace in traces.traces]
        self._rows = len(keys)
        self._common: dict[str, Any] = {
            **{name: [getattr(key, name) for key in keys] for name in ("prompt_id", "turn", "dataset", "category")},
            "repeat": [key.repeat for key in keys],
            "seed": [key.seed for key in keys],
            "prompt_tokens": [trace.prompt_tokens for trace in traces.traces],
            "output_tokens": [len(trace.output) for trace in traces.traces],
            "finish_reason": [trace.finish_reason for trace in traces.traces],
            "cached_tokens": [0] * self._rows,
            "output_token_ids": [trace.output.tolist() for trace in traces.traces],
        }
        self._made = {name: pa.array(values, REQUESTS.field(name).type) for name, values in self._common.items()}

    def write(self, folder: Path, cell: Cell, outcome: Outcome) -> None:
        """``requests.parquet`` of a cell; what a replay cannot know, such as clocks, is null."""
        own: dict[str, Any] = {
            "cell_id": [cell.cell_id] * self._rows,
            "block": [cell.block] * self._rows,
            **{name: getattr(outcome, name) for name in ("rounds", "drafted", "accepted", "accepted_raw")},
            "accept_histogram": [bars(row) for row in outcome.histogram],
        }
        made = {name: pa.array(values, REQUESTS.field(name).type) for name, values in own.items()} | self._made
        columns = [made[field.name] if field.name in made else pa.nulls(self._rows, field.type) for field in REQUESTS]
        pq.write_table(pa.table(columns, schema=REQUESTS), folder / "requests.parquet")


def bars(row: Any) -> list[int]:
    """A histogram without the zeros at its end, as it is stored."""
    filled = np.flatnonzero(row)
    kept: list[int] = row[: filled[-1] + 1].tolist() if len(filled) else []
    return kept


def write_surface(path: Path, points: Sequence[Point]) -> None:
    """One row a point that was computed: integers alone, so that every ratio of them is the reader's."""
    rows = [_row(point.planned.cell, point.traces, point.outcome) for point in points if point.outcome is not None]
    pq.write_table(pa.Table.from_pylist(rows, schema=SURFACE), path)


def _row(cell: Cell, traces: TraceSet, outcome: Outcome) -> dict[str, Any]:
    arm = {name: getattr(cell.arm, name) for name in SURFACE.names[:6]}
    return {
        **arm,
        "temperature": cell.temperature,
        "replayed": True,
        "requests": len(traces.traces),
        "output_tokens": sum(len(trace.output) for trace in traces.traces),
        **{name: int(getattr(outcome, name).sum()) for name in ("rounds", "drafted", "accepted", "accepted_raw")},
        "accept_histogram": bars(outcome.histogram.sum(axis=0)),
    }
