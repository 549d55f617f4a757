"""Points: cells of one arm, workload, batch size and temperature, with the requests that they finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddbench import metrics
from ddbench.metrics import Counts
from ddbench.records import STRATEGIES, content_hash
from reports import energy
from reports.frames import MEASURED, Stored, counts_of, finished, flag, records
from reports.guards.fingerprint import MACHINE, SCENARIO, fingerprint, power_limits
from reports.quantities import Floats
from reports.sums import Sums, by_block_and_prompt

WORST_FIRST = ("failed", "suspect", "unsupported", "ok")


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
        return Counts.joined(self.blocks) if self.blocks else counts_of(self.requests)

    @cached_property
    def asked(self) -> list[tuple[Any, ...]]:
        """(prompt, turn, repeat, block) of each request, in the order of :attr:`requests`."""
        keys = self.requests[["prompt_id", "turn", "repeat", "block"]]
        return list(keys.astype(object).itertuples(index=False, name=None))

    @cached_property
    def sums(self) -> Sums:
        """Both terms of every ratio of :data:`ddbench.metrics.RATIOS`, in its order: numerator, denominator, ..."""
        terms = [term for ratio in metrics.RATIOS for term in ratio.terms(self.counts)]
        return self.summed(np.column_stack(terms), np.ones(len(self.requests), dtype=bool))

    def counts_of(self, prompts: Collection[str]) -> Counts:
        """The requests of some prompts."""
        return counts_of(self.requests[self.requests["prompt_id"].isin(list(prompts))])

    def summed(self, terms: Floats, kept: NDArray[np.bool_]) -> Sums:
        """``terms`` [requests, terms] by block and prompt, over the requests to be ``kept``."""
        keys = [key for key, keep in zip(self.asked, kept, strict=True) if keep]
        return by_block_and_prompt(
            [key[0] for key in keys], [key[3] for key in keys], terms[kept], self.shares_one_clock
        )


def points_of(stored: Stored) -> list[Point]:
    """Points in a stable order: scenario, batch size, strategy, shape. Cells without a final status are left out."""
    limits, joules = power_limits(stored.telemetry), energy.by_cell(stored.telemetry)
    requests = dict(iter(finished(stored.requests).groupby("cell_id")))
    errors = Counter(stored.requests["cell_id"][stored.requests["error"].notna()])
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in records(stored.cells[stored.cells["status"].notna()]):
        row["power_limit_w"] = limits.get(row["cell_id"])
        cells.setdefault(row["point_id"], []).append(row)
    points = []
    for group in cells.values():
        group.sort(key=lambda row: int(row["block"]))
        frames = [requests[row["cell_id"]] for row in group if row["cell_id"] in requests]
        rows = pd.concat(frames) if frames else stored.requests.iloc[:0]
        block_ids = tuple(int(frame["block"].iloc[0]) for frame in frames)
        described = _description(group, sum(errors[row["cell_id"]] for row in group))
        gpus = int(flag(described["flags"], "tensor_parallel") or 1)
        measured = [row for row in group if row["cell_id"] in requests]
        described["energy_j"] = energy.of_cells(joules, measured, gpus)
        points.append(Point(described, rows, tuple(counts_of(frame) for frame in frames), block_ids))
    return sorted(points, key=lambda point: _order(point.row))


def _description(cells: list[dict[str, Any]], errors: int) -> dict[str, Any]:
    """The columns of a point that its cells state; statuses are pooled, the worst one wins."""
    row = {name: plain(value) for name, value in cells[0].items() if name not in ("block", "cell_id", "prompts")}
    machine = {name: _joined(cells, name) for name in MACHINE}
    statuses = [str(cell["status"]) for cell in cells]
    memory = [float(cell["peak_memory_gib"]) for cell in cells if cell["peak_memory_gib"] is not None]
    rate = flag(row["flags"], "request_rate")
    asked = [row[name] for name in SCENARIO] + ([] if rate is None else [rate])
    return {
        **row,
        **machine,
        "cell_ids": [str(cell["cell_id"]) for cell in cells],
        "blocks": sum(status in MEASURED for status in statuses),
        "errors": errors,
        "reason": _joined(cells, "reason"),
        "log": _joined(cells, "log"),
        "status": min(statuses, key=lambda status: WORST_FIRST.index(status) if status in WORST_FIRST else 0),
        "peak_memory_gib": max(memory, default=None),
        "scenario": content_hash(asked, 8),
        "fingerprint": fingerprint({**row, **machine}),
        "verify_width": None  # under a policy it is another at every step: rounds.parquet has it
        if row["policy"] is not None
        else metrics.verify_width(row["strategy"], row["depth"], row["nodes"]),
        "replayed": bool(flag(row["flags"], "replayed")),
    }


def plain(value: Any) -> Any:
    """A scalar of a frame as a Python value, with null as None."""
    if value is pd.NA or value is None:
        return None
    return value.item() if isinstance(value, np.generic) else value


def _joined(cells: list[dict[str, Any]], name: str) -> str | None:
    distinct = dict.fromkeys(str(cell[name]) for cell in cells if cell[name] is not None)
    return "; ".join(distinct) or None


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    known = STRATEGIES.index(row["strategy"]) if row["strategy"] in STRATEGIES else len(STRATEGIES)
    shape = tuple((row[axis] is None, row[axis] or 0) for axis in ("depth", "width", "nodes"))
    names = [str(row[name]) for name in ("engine", "host", "model", "dataset")]
    return (
        *names,
        row["temperature"],
        row["scenario"],
        row["batch_size"],
        known,
        row["policy"] or "",
        *shape,
        row["point_id"],
    )
