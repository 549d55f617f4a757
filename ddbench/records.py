"""The schemas of what a run stores: raw integers and clocks, never a ratio.

One run is one folder; one cell is one folder in it::

    outputs/<experiment>/<run_id>/
        config.yaml  environment.json  planned/*.json  dropped.json
        results.parquet  results.csv  report.md  figures/*.png
        cells/<cell_id>/{cell.yaml, status.json, requests.parquet, rounds.parquet, telemetry.parquet, server.log}
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from ddbench.storage import SCHEMA_VERSION

Status = Literal["ok", "unsupported", "failed", "suspect"]
STRATEGIES = ("autoregressive", "dflash", "eagle", "ddtree")  # in the order of a report
POLICIES = ("cost_optimal", "cost_optimal_uncalibrated", "caddtree")  # of ddtree's budget: ddbench.adaptive.named
FINAL_STATUSES: tuple[Status, ...] = ("ok", "unsupported", "failed", "suspect")


@dataclass(frozen=True)
class Arm:
    """Everything that defines one measured system: engine, strategy with its shape, model pair and flags.

    ``width``, ``depth`` and ``nodes`` are None where the strategy lacks the axis. ``flags`` holds engine settings that
    must be equal for a speed-up to be fair (device, dtype, threads, attention backend, page size, and so on).
    """

    engine: str
    engine_version: str
    strategy: str
    width: int | None
    depth: int | None
    nodes: int | None
    force_spine: bool
    min_log_prob: float | None
    model: str
    target: str
    target_revision: str | None
    drafter: str | None
    drafter_revision: str | None
    host: str
    flags: dict[str, Any]
    policy: str | None = None  # what chooses a ddtree's budget at every step; None: the shape is fixed
    cost: str | None = None  # hash of the step costs that the policy reckons with


@dataclass(frozen=True)
class Cell:
    """One arm x workload x batch size x temperature x block of repetition: the unit that is run, stored and resumed."""

    arm: Arm
    workload: str  # name of the workload, the `dataset` of its point
    prompts_hash: str  # content hash of the prompt records, in order
    prompts: int  # measured prompts
    batch_size: int  # requests in flight
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    repeats: int
    block: int  # index of the block of repetition

    @property
    def cell_id(self) -> str:
        """16 hex digits of the SHA-256 of the cell's canonical JSON."""
        return content_hash(self._hashed())

    @property
    def point_id(self) -> str:
        """Like :attr:`cell_id`, with the block of repetition left out: the blocks of one point share it."""
        return content_hash({k: v for k, v in self._hashed().items() if k != "block"})

    def _hashed(self) -> dict[str, Any]:
        """What the ids are made of. What an arm has been able to have since later is left out where it has none, so
        that ids stay."""
        data = asdict(self)
        data["arm"] = {k: v for k, v in data["arm"].items() if v is not None or k not in ("policy", "cost")}
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Cell:
        """The inverse of ``dataclasses.asdict``, as read from ``cell.yaml``."""
        return cls(**{**data, "arm": Arm(**data["arm"])})

    def with_block(self, block: int) -> Cell:
        return replace(self, block=block)


def content_hash(value: object, digits: int = 16) -> str:
    """First ``digits`` hex digits of the SHA-256 of ``value`` as canonical JSON (sorted keys, no spaces)."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:digits]


@dataclass(frozen=True)
class Attempt:
    """A try at a cell that broke off for no fault of the arm. ``log`` is relative to the run folder."""

    kind: str  # see runners.base.FailureKind
    reason: str
    started: str  # ISO 8601, UTC
    seconds: float
    log: str | None


@dataclass(frozen=True)
class CellStatus:
    """``status.json``: how a cell ended. ``log`` is relative to the run folder."""

    status: Status
    reason: str | None
    log: str | None
    started: str  # ISO 8601, UTC
    seconds: float  # wall time of the cell, warm-up included
    gpu: str | None
    peak_memory_gib: float | None
    build: str | None = None  # hash of the engine's source where it is part of ddbench, else of our plug-in, where seen
    target_weight_bytes: int | None = None  # of the target that a decode step reads, as the engine holds them
    gpu_bytes_per_s: int | None = None  # memory bandwidth of one GPU
    kind: str | None = None  # of a failed cell: what broke, see runners.base.FailureKind
    attempts: tuple[Attempt, ...] = ()  # those before this one, which broke off
    tables: tuple[str, ...] = ()  # Parquet files of the cell
    schema: int = SCHEMA_VERSION  # of the cell's files
    start_temperature_c: float | None = None  # of the hottest GPU when the cell began
    cooling_s: float | None = None  # spent until it was cool enough; null where no such wait was asked for


REQUESTS = pa.schema(
    [
        ("cell_id", pa.string()),
        ("block", pa.int32()),
        ("prompt_id", pa.string()),
        ("turn", pa.int32()),
        ("dataset", pa.string()),
        ("category", pa.string()),
        ("repeat", pa.int32()),
        ("seed", pa.int64()),
        ("prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),  # prefill token included, clipped at stop and max tokens
        ("rounds", pa.int32()),  # verify rounds; 0 for autoregressive decoding
        ("drafted", pa.int64()),  # nodes proposed over all rounds, root not counted; null where nobody counts them
        ("accepted", pa.int64()),  # drafted tokens kept in the output
        ("accepted_raw", pa.int64()),  # before clipping at stop and max tokens
        ("accept_histogram", pa.list_(pa.int64())),  # [a] = rounds that accepted a drafted tokens, before clipping
        ("start_s", pa.float64()),  # seconds since the cell's measurement began
        ("ttft_s", pa.float64()),  # start to first token
        ("latency_s", pa.float64()),  # start to last token
        ("finish_reason", pa.string()),
        ("cached_tokens", pa.int32()),
        ("output_token_ids", pa.list_(pa.int32())),
        ("error", pa.string()),
        # Of autoregressive decoding at temperature 0, from a pass that is not measured: log-probability of the target's
        # best token less that of its second best, one an output token; null where not gathered (docs/guards.md).
        ("output_gaps", pa.list_(pa.float32())),
    ]
)

ROUNDS = pa.schema(
    [
        ("cell_id", pa.string()),
        ("block", pa.int32()),
        ("prompt_id", pa.string()),
        ("turn", pa.int32()),
        ("repeat", pa.int32()),
        ("round", pa.int32()),
        ("drafted", pa.int32()),
        ("tree_depth", pa.int32()),  # deepest node of the tree
        ("accepted", pa.int32()),
        ("accepted_raw", pa.int32()),
        ("emitted", pa.int32()),
        ("in_flight", pa.int32()),  # sequences in the batch of this round
        ("draft_s", pa.float64()),  # wall seconds of the batch's stage, shared by its sequences
        ("build_s", pa.float64()),
        ("verify_s", pa.float64()),
        ("commit_s", pa.float64()),
        ("verify_width", pa.int32()),  # of the target's pass, shared by the sequences of the batch
        ("choice", pa.string()),  # of a policy: tree, chain or autoregressive; null without one
        ("chosen_nodes", pa.int32()),  # of the choice: budget or chain's depth
    ]
)

TELEMETRY = pa.schema(
    [
        ("cell_id", pa.string()),
        ("time_s", pa.float64()),  # seconds since the cell's measurement began
        ("name", pa.string()),  # e.g. gpu_sm_clock_mhz, gpu_power_w, process_rss_gib, cpu_percent
        ("value", pa.float64()),
    ]
)
