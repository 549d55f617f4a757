"""What W&B is told of one cell: its flat configuration and its final numbers, from the stored files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from ddbench import metrics
from ddbench.records import Cell, content_hash
from reports.frames import counts_of, finished

# Of environment.json: enough to tell machines and builds apart on a dashboard.
ENVIRONMENT = ("cpu", "driver", "git_commit", "python", "platform")
COUNTS = ("output_tokens", "rounds", "drafted", "accepted", "accepted_raw")
OF_THE_ARM = (
    *("strategy", "width", "depth", "nodes", "force_spine", "min_log_prob", "policy", "cost"),
    *("drafter", "drafter_revision"),
)


def cell_config(cell: Cell, environment: dict[str, Any], gpu: str | None, run: str) -> dict[str, Any]:
    """Arm and cell as one flat mapping; an engine flag ``x`` becomes ``flag_x``. ``gpu`` is null on a CPU."""
    flat = asdict(cell)
    arm = flat.pop("arm")
    flags = arm.pop("flags")
    return {
        **arm,
        **{f"flag_{name}": value for name, value in sorted(flags.items())},
        "dataset": flat.pop("workload"),
        **flat,
        "gpu": gpu,
        **{name: environment.get(name) for name in ENVIRONMENT},
        "cell_id": cell.cell_id,
        "point_id": cell.point_id,
        "run_id": run,
    }


def baseline_key(cell: Cell) -> str:
    """The same for a cell and for the autoregressive cell that it is held against: all but the arm's own axes."""
    data = asdict(cell)
    for name in OF_THE_ARM:
        del data["arm"][name]
    return content_hash(data)


def drafted_nodes(cell: Cell) -> int | None:
    """Drafted nodes a round: 0 for autoregressive decoding, a chain's depth, a tree's nodes; None under a policy."""
    if cell.arm.policy is not None:
        return None
    width = metrics.verify_width(cell.arm.strategy, cell.arm.depth, cell.arm.nodes)
    return None if width is None else width - 1


def cell_scalars(cell: Cell, requests: pd.DataFrame, baseline: pd.DataFrame | None) -> dict[str, float | int]:
    """Final numbers of a measured cell by name; a value that does not exist is left out.

    ``requests`` and ``baseline`` are request rows of the cell and of its autoregressive cell, None where that has not
    been measured yet. Definitions as in :mod:`ddbench.metrics`; no intervals: the report has those, of whole points.
    """
    rows = finished(requests)
    counts = counts_of(rows)
    values: dict[str, float | int | None] = {
        "requests": len(rows),
        "prompts": int(rows["prompt_id"].nunique()),
        "errors": len(requests) - len(rows),
        "verify_width": metrics.verify_width(cell.arm.strategy, cell.arm.depth, cell.arm.nodes),
        "tokens_per_s": metrics.tokens_per_s([counts]),
        "tokens_per_s_steady": metrics.tokens_per_s_steady([counts]),
    }
    for name in COUNTS:
        total = float(getattr(counts, name).sum())
        values[name] = int(total) if np.isfinite(total) else None
    values |= {ratio.name: ratio(counts) for ratio in metrics.RATIOS}
    if baseline is not None:
        values |= _against(cell, rows, finished(baseline))
    return {name: value for name, value in values.items() if value is not None}


def _against(cell: Cell, rows: pd.DataFrame, baseline: pd.DataFrame) -> dict[str, float | None]:
    """Speed-up on the (prompt, turn) pairs that both finished, and the lossless share at temperature 0."""
    keys = ["prompt_id", "turn"]
    mine, theirs = (_asked(frame, keys) for frame in (rows, baseline))
    ours = metrics.tokens_per_s_per_user(counts_of(rows[mine.isin(theirs)]))
    rate = metrics.tokens_per_s_per_user(counts_of(baseline[theirs.isin(mine)]))
    values = {"speedup_vs_autoregressive": ours / rate if ours is not None and rate else None}
    if cell.temperature == 0:
        first = baseline.sort_values("repeat", kind="stable").drop_duplicates(keys)
        reference = dict(_ids(first, keys))
        ids = dict(_ids(rows, [*keys, "repeat"]))
        if cell.arm.strategy == "autoregressive":  # held against itself: its further answers against its first
            ids = {key: value for key, value in ids.items() if key not in dict(_ids(first, [*keys, "repeat"]))}
        values["lossless_share"] = metrics.lossless_share(
            ids, {key: reference[key[:2]] for key in ids if key[:2] in reference}
        )
    return values


def _asked(frame: pd.DataFrame, keys: list[str]) -> pd.Series[Any]:
    return pd.Series(list(frame[keys].itertuples(index=False, name=None)), index=frame.index, dtype=object)


def _ids(frame: pd.DataFrame, keys: list[str]) -> list[tuple[tuple[Any, ...], list[int]]]:
    rows = frame[keys].itertuples(index=False, name=None)
    return [(key, list(ids)) for key, ids in zip(rows, frame["output_token_ids"], strict=True) if ids is not None]
