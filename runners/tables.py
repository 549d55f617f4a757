"""What a cell measured, as the rows of :mod:`ddbench.records`: integers and clocks, never a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ddbench.records import REQUESTS, ROUNDS, TELEMETRY, Cell
from ddbench.storage import write_parquet
from runners.base import Prompt
from runners.gaps import Gaps
from runners.telemetry import Sample

if TYPE_CHECKING:
    from ddbench.decoding import Generation

Measured = tuple[Prompt, int, "Generation"]  # the prompt, which repeat, and what came of it


Rows = list[dict[str, Any]]


def write_tables(
    folder: Path,
    cell: Cell,
    measured: Sequence[Measured],
    samples: Sequence[Sample],
    gaps: Sequence[Gaps | None] | None = None,
    unmeasured: Sequence[str] = (),
) -> None:
    """Writes requests.parquet, rounds.parquet and telemetry.parquet of a cell of the reference engine.

    ``gaps``: ``output_gaps`` of each request, None where they were not gathered. ``unmeasured``: columns of
    rounds.parquet that are null.
    """
    requests = [_request(cell, *item) for item in measured]
    for row, found in zip(requests, gaps or [None] * len(requests), strict=True):
        row["output_gaps"] = found
    unknown = dict.fromkeys(unmeasured)
    rounds = [row | unknown for item in measured for row in _rounds(cell, *item)]
    write_rows(folder, cell, requests, rounds, samples)


def write_rows(folder: Path, cell: Cell, requests: Rows, rounds: Rows | None, samples: Sequence[Sample]) -> None:
    """Writes a cell's tables from rows as :mod:`ddbench.records` describes them. ``rounds`` None: no rounds.parquet."""
    telemetry = [
        {"cell_id": cell.cell_id, "time_s": time, "name": name, "value": value} for time, name, value in samples
    ]
    for name, schema, rows in (
        ("requests", REQUESTS, requests),
        ("rounds", ROUNDS, rounds),
        ("telemetry", TELEMETRY, telemetry),
    ):
        if rows is not None:
            write_parquet(folder / f"{name}.parquet", pa.Table.from_pylist(rows, schema=schema))


def _request(cell: Cell, prompt: Prompt, repeat: int, generation: Generation) -> dict[str, Any]:
    rounds = generation.rounds
    return {
        "cell_id": cell.cell_id,
        "block": cell.block,
        "prompt_id": prompt.id,
        "turn": generation.request.turn,
        "dataset": prompt.dataset,
        "category": prompt.category,
        "repeat": repeat,
        "seed": generation.request.sampling.seed,
        "prompt_tokens": generation.prompt_tokens,
        "output_tokens": len(generation.output_token_ids),
        "rounds": len(rounds),
        "drafted": sum(round.drafted for round in rounds),
        "accepted": sum(round.accepted for round in rounds),
        "accepted_raw": sum(round.accepted_raw for round in rounds),
        "accept_histogram": histogram([round.accepted_raw for round in rounds]),
        "start_s": generation.start_s,
        "ttft_s": generation.first_token_s - generation.start_s,
        "latency_s": generation.finish_s - generation.start_s,
        "finish_reason": generation.finish_reason,
        "cached_tokens": 0,
        "output_token_ids": list(generation.output_token_ids),
        "error": generation.error,
    }


def _rounds(cell: Cell, prompt: Prompt, repeat: int, generation: Generation) -> list[dict[str, Any]]:
    return [
        {
            "cell_id": cell.cell_id,
            "block": cell.block,
            "prompt_id": prompt.id,
            "turn": generation.request.turn,
            "repeat": repeat,
            "round": index,
            **vars(round),
        }
        for index, round in enumerate(generation.rounds)
    ]


def histogram(accepted: Sequence[int]) -> list[int]:
    """[a] = how many rounds accepted a drafted tokens; empty without rounds."""
    counts = [0] * (max(accepted) + 1 if accepted else 0)
    for value in accepted:
        counts[value] += 1
    return counts
