"""Frames to results: one row a point, every rate with its interval and n."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ddbench import metrics
from ddbench.metrics import Counts, Ratio
from ddbench.records import content_hash
from reports import baselines
from reports.frames import MEASURED, Stored, counts_of, finished, flag, records, to_frame
from reports.statistics import NOTHING, Estimate, bootstrap, cluster_sums, t_half_width

# What must be equal for two points to answer the same question, as must the rate at which requests arrive in an open
# loop; batch size is an axis inside a scenario.
SCENARIO = (
    "engine",
    "engine_version",
    "host",
    "model",
    "target",
    "target_revision",
    "dataset",
    "prompts_hash",
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
)
STAGES = ("draft", "build", "verify", "commit")
WORST_FIRST = ("failed", "suspect", "unsupported", "ok")

_INTERVALS = (
    *(ratio.name for ratio in metrics.RATIOS),
    "tokens_per_s",
    "speedup_vs_autoregressive",
    "speedup_vs_dflash",
    "throughput_ratio_vs_autoregressive",
    "throughput_ratio_vs_dflash",
)


def _fields(kind: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, kind) for name in names]


RESULTS = pa.schema(
    [
        ("point_id", pa.string()),
        ("cell_ids", pa.list_(pa.string())),
        ("blocks", pa.int32()),
        *_fields(pa.string(), "engine", "engine_version", "strategy", "model", "target", "target_revision"),
        *_fields(pa.string(), "drafter", "drafter_revision", "dataset"),
        *_fields(pa.int32(), "width", "depth", "nodes"),
        ("force_spine", pa.bool_()),
        ("min_log_prob", pa.float64()),
        ("batch_size", pa.int32()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("top_k", pa.int32()),
        ("seed", pa.int64()),
        ("max_new_tokens", pa.int32()),
        *_fields(pa.string(), "prompts_hash", "host", "gpu", "scenario", "fingerprint", "flags"),
        *_fields(pa.int32(), "requests", "prompts", "errors"),
        *_fields(pa.int64(), "output_tokens", "rounds", "drafted", "accepted", "accepted_raw"),
        ("verify_width", pa.int32()),
        *[(f"{name}{end}", pa.float64()) for name in _INTERVALS for end in ("", "_low", "_high")],
        *_fields(pa.int32(), "speedup_vs_autoregressive_n", "speedup_vs_dflash_n"),
        *_fields(pa.string(), "autoregressive_point_id", "dflash_point_id", "baseline_note"),
        *_fields(pa.float64(), "tokens_per_s_steady", "steady_window_s", "lossless_share"),
        *_fields(pa.float64(), *(f"{stage}_ms" for stage in STAGES), "peak_memory_gib"),
        *_fields(pa.string(), "status", "reason", "log"),
    ]
)


@dataclass(frozen=True)
class Point:
    """One point: its cells (blocks of repetition) and the requests they finished."""

    row: dict[str, Any]  # the columns that describe it
    requests: pd.DataFrame  # finished requests of all measured blocks
    blocks: tuple[Counts, ...]  # the same, a block each, for throughput
    block_ids: tuple[int, ...]  # of `blocks`; a block that failed is missing from both

    @property
    def measured(self) -> bool:
        return len(self.requests) > 0

    @cached_property
    def shares_one_clock(self) -> bool:
        """Whether there are fewer than two batches' worth of prompts: most then share their rounds, hence one clock.

        Their times are one observation, however many prompts there are; a bootstrap over them would give an interval of
        almost no width.
        """
        batch_size = int(self.row["batch_size"])
        return batch_size > 1 and len({asked[0] for asked in self.asked}) < 2 * batch_size

    @cached_property
    def counts(self) -> Counts:
        return counts_of(self.requests)

    @cached_property
    def asked(self) -> list[tuple[Any, ...]]:
        """(prompt, turn) of each request, in the order of :attr:`requests`."""
        return list(self.requests[["prompt_id", "turn"]].itertuples(index=False, name=None))


def points_of(stored: Stored) -> list[Point]:
    """Points in a stable order: scenario, batch size, strategy, shape. Cells without a final status are left out."""
    final = stored.cells[stored.cells["status"].notna()]
    requests = dict(iter(finished(stored.requests).groupby("cell_id")))
    errors = stored.requests[stored.requests["error"].notna()].groupby("cell_id").size()
    points = []
    for _, cells in final.groupby("point_id", sort=True):
        cells = cells.sort_values("block")
        ids = [str(cell_id) for cell_id in cells["cell_id"]]
        frames = [requests[cell_id] for cell_id in ids if cell_id in requests]
        rows = pd.concat(frames) if frames else stored.requests.iloc[:0]
        row = _description(cells, int(errors.reindex(ids).fillna(0).sum()))
        block_ids = tuple(int(frame["block"].iloc[0]) for frame in frames)
        points.append(Point(row, rows, tuple(counts_of(frame) for frame in frames), block_ids))
    return sorted(points, key=lambda point: _order(point.row))


@dataclass(frozen=True)
class Analysis:
    """All points of a run and the table that ``results.parquet`` holds, in the same order."""

    points: list[Point]
    table: pa.Table

    @property
    def frame(self) -> pd.DataFrame:
        return to_frame(self.table)


def analyse(stored: Stored) -> Analysis:
    """Pool cells to points and derive every column of :data:`RESULTS`."""
    points = points_of(stored)
    stage_ms = _stage_means(stored)
    rows = []
    for point in points:
        row = dict(point.row)
        if point.measured:
            row |= _measures(point)
            row |= baselines.compare(point, points)
            row |= stage_ms.get(row["point_id"], {})
        rows.append({name: row.get(name) for name in RESULTS.names})
    return Analysis(points, pa.Table.from_pylist(rows, schema=RESULTS))


def acceptance_by_depth(point: Point) -> list[dict[str, Any]]:
    """Rows (depth, unconditional and conditional rate with _low and _high, rounds at risk) of one point.

    Rates as :func:`ddbench.metrics.acceptance_by_depth`, down to the arm's depth; intervals over prompts.
    """
    histogram = point.counts.histogram
    unseen = max((point.row["depth"] or 0) + 1 - histogram.shape[1], 0)  # depths that no round reached: 0, not absent
    reached = metrics.rounds_reaching(np.pad(histogram, ((0, 0), (0, unseen))))
    rows = []
    for depth in range(1, reached.shape[1]):
        row: dict[str, Any] = {"depth": depth, "rounds": int(reached[:, depth - 1].sum())}
        for name, base in (("unconditional", reached[:, 0]), ("conditional", reached[:, depth - 1])):
            _, sums = cluster_sums(point.requests["prompt_id"], np.column_stack([reached[:, depth], base]))
            row |= with_interval(name, bootstrap(sums, (1, -1)))
        rows.append(row)
    return rows


def estimate(point: Point, ratio: Ratio) -> Estimate:
    """A ratio over the point's requests with its bootstrap interval over prompts; n counts prompts."""
    _, sums = cluster_sums(point.requests["prompt_id"], np.column_stack(ratio.terms(point.counts)))
    value = bootstrap(sums, (1, -1), ratio.scale)
    return value.without_bar() if ratio.timed and point.shares_one_clock else value


def with_interval(name: str, value: Estimate) -> dict[str, float | None]:
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}


def throughput(blocks: tuple[Counts, ...]) -> Estimate:
    """Aggregate tokens/s: pooled value, t interval over blocks of repetition where there are two or more."""
    value = metrics.tokens_per_s(blocks)
    if value is None:
        return NOTHING
    each = [rate for block in blocks if (rate := metrics.tokens_per_s([block])) is not None]
    if len(each) < 2:
        return Estimate(value, None, None, len(each))
    half = t_half_width(np.asarray(each))
    return Estimate(value, max(value - half, 0.0), value + half, len(each))


def _measures(point: Point) -> dict[str, Any]:
    counts = point.counts
    row: dict[str, Any] = {
        "requests": len(counts),
        "prompts": int(point.requests["prompt_id"].nunique()),
        "output_tokens": _total(counts.output_tokens),
        "rounds": _total(counts.rounds),
        "drafted": _total(counts.drafted),
        "accepted": _total(counts.accepted),
        "accepted_raw": _total(counts.accepted_raw),
        "tokens_per_s_steady": metrics.tokens_per_s_steady(point.blocks),
    }
    windows = [window for block in point.blocks if (window := metrics.steady_window(block)) is not None]
    row["steady_window_s"] = sum(high - low for low, high in windows) if windows else None
    for ratio in metrics.RATIOS:
        row |= with_interval(ratio.name, estimate(point, ratio))
    return row | with_interval("tokens_per_s", throughput(point.blocks))


def _total(values: metrics.Floats) -> int | None:
    total = float(values.sum())
    return int(total) if np.isfinite(total) else None


def _description(cells: pd.DataFrame, errors: int) -> dict[str, Any]:
    """The columns of a point that its cells state; statuses are pooled, the worst one wins."""
    first = records(cells.head(1))[0]
    row = {name: _plain(value) for name, value in first.items() if name not in ("block", "cell_id", "prompts")}
    gpu = _joined(cells["gpu"])
    statuses = [str(status) for status in cells["status"]]
    memory = cells["peak_memory_gib"].dropna()
    rate = flag(row["flags"], "request_rate")
    asked = [row[name] for name in SCENARIO] + ([] if rate is None else [rate])
    return row | {
        "cell_ids": [str(cell_id) for cell_id in cells["cell_id"]],
        "blocks": sum(status in MEASURED for status in statuses),
        "errors": errors,
        "gpu": gpu,
        "reason": _joined(cells["reason"]),
        "log": _joined(cells["log"]),
        "status": min(statuses, key=lambda status: WORST_FIRST.index(status) if status in WORST_FIRST else 0),
        "peak_memory_gib": float(memory.max()) if len(memory) else None,
        "scenario": content_hash(asked, 8),
        "fingerprint": content_hash([*(row[name] for name in SCENARIO), row["flags"], gpu]),
        "verify_width": metrics.verify_width(row["strategy"], row["depth"], row["nodes"]),
    }


def _plain(value: Any) -> Any:
    """A scalar of a frame as a Python value, with null as None."""
    if value is pd.NA or value is None:
        return None
    return value.item() if isinstance(value, np.generic) else value


def _joined(values: pd.Series[Any]) -> str | None:
    distinct = dict.fromkeys(str(value) for value in values.dropna())
    return "; ".join(distinct) or None


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    strategies = ("autoregressive", "dflash", "eagle", "ddtree")
    known = strategies.index(row["strategy"]) if row["strategy"] in strategies else len(strategies)
    shape = tuple((row[axis] is None, row[axis] or 0) for axis in ("depth", "width", "nodes"))
    names = [str(row[name]) for name in ("engine", "host", "model", "dataset")]
    return (*names, row["temperature"], row["scenario"], row["batch_size"], known, *shape, row["point_id"])


def _stage_means(stored: Stored) -> dict[str, dict[str, float | None]]:
    """Mean wall milliseconds of each stage over sequence rounds, by point."""
    if stored.rounds.empty:
        return {}
    owner = stored.cells.set_index("cell_id")["point_id"]
    columns = [f"{stage}_s" for stage in STAGES]
    means = stored.rounds.groupby(stored.rounds["cell_id"].map(owner))[columns].mean() * 1000.0
    return {
        str(point_id): {f"{stage}_ms": _plain(row[f"{stage}_s"]) for stage in STAGES}
        for point_id, row in means.iterrows()
    }


def csv_table(table: pa.Table) -> pa.Table:
    """The results as CSV can hold them: ``cell_ids`` joined by semicolons, a null an empty field."""
    ids = pa.array([";".join(row) for row in table["cell_ids"].to_pylist()], pa.string())
    return table.set_column(table.schema.get_field_index("cell_ids"), "cell_ids", ids)
