"""The columns of a point that follow from its own requests: counts, rates, throughput, percentiles, bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np

from ddbench import metrics
from ddbench.metrics import Counts
from reports.columns import PERCENTILES, STAGES
from reports.frames import Stored, flag
from reports.points import Point, plain
from reports.quantities import Product
from reports.statistics import NOTHING, Estimate, t_half_width
from reports.sums import Sums

COUNTED = ("output_tokens", "rounds", "drafted", "accepted", "accepted_raw")


def measures(point: Point) -> dict[str, Any]:
    """All of them, by column."""
    speed = throughput(point.blocks)
    row: dict[str, Any] = {
        "requests": len(point.counts),
        "prompts": len(point.sums.prompts),
        **{name: _total(getattr(point.counts, name)) for name in COUNTED},
        **ratios(point.sums),
        **speed.columns("tokens_per_s"),
        "tokens_per_s_n": speed.n,
        **_steady(point.blocks),
        **_percentiles(point.counts),
    }
    tokens, joules = row["output_tokens"], point.row["energy_j"]
    row["energy_per_token_j"] = None if joules is None or not tokens else joules / tokens
    return row | _bandwidth(point, row)


def ratios(sums: Sums, *names: str) -> dict[str, float | None]:
    """Ratios of :data:`ddbench.metrics.RATIOS`, all or those named, with their intervals; ``sums`` as a point's."""
    chosen = [i for i, ratio in enumerate(metrics.RATIOS) if not names or ratio.name in names]
    timed, counted = ([i for i in chosen if metrics.RATIOS[i].timed == clocks] for clocks in (True, False))
    found = sums.mixed([_quantity(i) for i in timed], [_quantity(i) for i in counted])
    row: dict[str, float | None] = {}
    for i, each in zip((*timed, *counted), (*found[0], *found[1]), strict=True):
        row |= each.columns(metrics.RATIOS[i].name)
    return row


def throughput(blocks: tuple[Counts, ...]) -> Estimate:
    """Aggregate tokens/s: pooled value, t interval over blocks of repetition where there are two; n counts blocks."""
    value = metrics.tokens_per_s(blocks)
    if value is None:
        return NOTHING
    each = [rate for block in blocks if (rate := metrics.tokens_per_s([block])) is not None]
    if len(each) < 2:
        return Estimate(value, None, None, len(each), "n = 1 block")
    half = t_half_width(np.asarray(each))
    return Estimate(value, max(value - half, 0.0), value + half, len(each), f"t over {len(each)} blocks")


def stage_means(stored: Stored) -> dict[str, dict[str, float | None]]:
    """Mean wall milliseconds of each stage over sequence rounds, by point."""
    if stored.rounds.empty:
        return {}
    owner = stored.cells.set_index("cell_id")["point_id"]
    columns = [f"{stage}_s" for stage in STAGES]
    means = stored.rounds.groupby(stored.rounds["cell_id"].map(owner))[columns].mean() * 1000.0
    return {
        str(point_id): {f"{stage}_ms": plain(row[f"{stage}_s"]) for stage in STAGES}
        for point_id, row in means.iterrows()
    }


def _quantity(which: int) -> Product:
    """Ratio number ``which`` of :data:`ddbench.metrics.RATIOS`, of sums that hold both terms of each."""
    powers = [0] * (2 * len(metrics.RATIOS))
    powers[2 * which : 2 * which + 2] = [1, -1]
    return Product(tuple(powers), metrics.RATIOS[which].scale)


def _total(values: metrics.Floats) -> int | None:
    total = float(values.sum())
    return int(total) if np.isfinite(total) else None


def _steady(blocks: tuple[Counts, ...]) -> dict[str, Any]:
    windows = [window for block in blocks if (window := metrics.steady_window(block)) is not None]
    turnovers = [number for block in blocks if (number := metrics.steady_turnovers(block)) is not None]
    short = [mark for block in blocks if (mark := metrics.steady_short(block)) is not None]
    return {
        "tokens_per_s_steady": metrics.tokens_per_s_steady(blocks),
        "steady_window_s": sum(high - low for low, high in windows) if windows else None,
        "steady_turnovers": min(turnovers, default=None),
        "steady_short": any(short) if short else None,
    }


def _percentiles(counts: Counts) -> dict[str, float | None]:
    row: dict[str, float | None] = {}
    for clock, seconds in (("latency", counts.latency_s), ("ttft", counts.ttft_s)):
        for percent in PERCENTILES:
            found = metrics.percentile(seconds, percent)
            row[f"p{percent}_{clock}_ms"] = None if found is None else 1000 * found
    return row


def _bandwidth(point: Point, row: dict[str, Any]) -> dict[str, Any]:
    """How near the decode rate comes to what the GPU's memory allows; GPUs of one arm read side by side."""
    one = point.row["gpu_bytes_per_s"]
    gpus = int(flag(point.row["flags"], "tensor_parallel") or 1)
    acceptance = 1.0 if point.row["strategy"] == "autoregressive" else row["acceptance_length"]
    ceiling = metrics.bandwidth_ceiling(acceptance, point.row["target_weight_bytes"], one and one * gpus)
    rate = row["tokens_per_s_per_user"]
    share = None if ceiling is None or rate is None else rate / ceiling
    return {"bandwidth_ceiling_tokens_per_s": ceiling, "bandwidth_share": share}
