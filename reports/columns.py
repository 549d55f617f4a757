"""The columns of everything that a report derives: ``results.parquet`` and the frames beside it.

Every frame has nullable types, and is empty where nothing is to be said.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from ddbench import metrics
from ddbench.acceptance import VARIANTS
from reports.frames import to_frame

STAGES = ("draft", "build", "verify", "commit")
BASELINES = ("autoregressive", "dflash")
PERCENTILES = (50, 90, 95, 99)

_INTERVALS = (
    *(ratio.name for ratio in metrics.RATIOS),
    "tokens_per_s",
    *(f"speedup_vs_{name}" for name in BASELINES),
    *(f"throughput_ratio_vs_{name}" for name in BASELINES),
    *(f"{name}_vs_dflash" for name in ("acceptance_ratio", "acceptance_difference", "step_ratio")),
)


def _fields(kind: pa.DataType, *names: str) -> list[tuple[str, pa.DataType]]:
    return [(name, kind) for name in names]


def _intervals(*names: str) -> list[tuple[str, pa.DataType]]:
    return [(f"{name}{end}", pa.float64()) for name in names for end in ("", "_low", "_high")]


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
        *_fields(pa.string(), "policy", "cost"),  # what chose the budget of every step, and the costs it reckoned with
        ("batch_size", pa.int32()),
        ("temperature", pa.float64()),
        ("top_p", pa.float64()),
        ("top_k", pa.int32()),
        ("seed", pa.int64()),
        ("max_new_tokens", pa.int32()),
        *_fields(pa.string(), "prompts_hash", "host", "gpu", "power_limit_w", "build"),
        *_fields(pa.string(), "scenario", "fingerprint", "flags"),
        *_fields(pa.int32(), "requests", "prompts", "errors"),
        *_fields(pa.int64(), "output_tokens", "rounds", "drafted", "accepted", "accepted_raw"),
        ("verify_width", pa.int32()),
        *_intervals(*_INTERVALS),
        ("rank_tokens_per_s_per_user", pa.float64()),  # decode rate on what all contenders measured: reports.ranking
        # Of a speed-up: prompts behind it, its interval's kind, sign test over prompts, verdict.
        *_fields(pa.int32(), *(f"speedup_vs_{name}_n" for name in BASELINES)),
        *_fields(pa.string(), *(f"speedup_vs_{name}_method" for name in BASELINES)),
        *_fields(pa.float64(), *(f"speedup_vs_{name}_sign_p" for name in BASELINES)),
        *_fields(pa.string(), *(f"speedup_vs_{name}_verdict" for name in BASELINES)),
        *_fields(pa.string(), *(f"{name}_point_id" for name in BASELINES), "baseline_note"),
        # Aggregate throughput: its replicate is the block.
        *_fields(pa.int32(), "tokens_per_s_n", *(f"throughput_ratio_vs_{name}_n" for name in BASELINES)),
        *_fields(pa.float64(), "tokens_per_s_steady", "steady_window_s"),
        ("steady_turnovers", pa.float64()),
        ("steady_short", pa.bool_()),
        *_fields(pa.float64(), *(f"p{p}_{clock}_ms" for clock in ("latency", "ttft") for p in PERCENTILES)),
        *_fields(pa.int64(), "target_weight_bytes", "gpu_bytes_per_s"),
        *_fields(pa.float64(), "bandwidth_ceiling_tokens_per_s", "bandwidth_share"),
        # Guards.
        *_fields(pa.float64(), "lossless_share", "control_share", "first_divergence_median", "tie_share"),
        ("lossless_n", pa.int32()),
        *_fields(pa.float64(), "distinct_4gram_share", "compression_ratio", "length_ratio_vs_autoregressive"),
        ("finish_stop_share", pa.float64()),
        *_fields(pa.string(), "degenerate_reason", "degeneracy_baseline"),
        *_fields(pa.float64(), *(f"{stage}_ms" for stage in STAGES), "peak_memory_gib"),
        *_fields(pa.float64(), "energy_j", "energy_per_token_j"),  # of all GPUs while the cells were measured
        *_fields(pa.string(), "status", "reason", "log"),
        ("replayed", pa.bool_()),  # computed from a recording (docs/replay.md): counts alone, no clock
    ]
)

CATEGORIES = pa.schema(
    [
        *_fields(pa.string(), "point_id", "dataset", "category"),
        *_fields(pa.int32(), "requests", "prompts"),
        *_intervals("acceptance_length", "tokens_per_s_per_user", *(f"speedup_vs_{name}" for name in BASELINES)),
    ]
)

ACCEPTANCE_VARIANTS = pa.schema(
    [("point_id", pa.string()), *_fields(pa.float64(), *(variant.name for variant in VARIANTS))]
)

# The shape is chosen on one half of the prompts; `value` and `speedup_...` are its on the other half.
SELECTION = pa.schema(
    [
        ("scenario", pa.string()),
        ("batch_size", pa.int32()),
        *_fields(pa.string(), "strategy", "chosen_point_id", "chosen_label"),
        *_intervals("value", "speedup_vs_autoregressive"),
        *_fields(pa.string(), "hindsight_point_id", "hindsight_label"),
        *_fields(pa.float64(), "hindsight_value", "hindsight_speedup"),
        *_fields(pa.int32(), "prompts_choose", "prompts_report"),
        ("note", pa.string()),
    ]
)

DRIFT = pa.schema(
    [
        ("scenario", pa.string()),
        *_fields(pa.int32(), "batch_size", "block"),
        ("first_started", pa.string()),
        ("relative_rate", pa.float64()),  # geometric mean over arms of decode rate against their first block's
        ("n", pa.int32()),  # arms behind it
    ]
)

LEDGER = pa.schema(
    [
        *_fields(pa.string(), "point_id", "prompt_id"),
        *_fields(pa.int32(), "turn", "block", "repeat"),
        ("divergence", pa.int32()),  # index of the first token that differs; null: identical
        *_fields(pa.int32(), "baseline_tokens", "tokens"),
        ("gap", pa.float64()),  # baseline's top-1 to top-2 log-probability gap at that index; null: not known
    ]
)


def empty(schema: pa.Schema) -> pd.DataFrame:
    """No rows of a schema."""
    return to_frame(schema.empty_table())


def framed(rows: list[dict[str, object]], schema: pa.Schema) -> pd.DataFrame:
    """Rows as a frame; a column that a row lacks is null."""
    whole = [{name: row.get(name) for name in schema.names} for row in rows]
    return to_frame(pa.Table.from_pylist(whole, schema=schema))
