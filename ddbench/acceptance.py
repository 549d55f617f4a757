"""Acceptance length as each tool defines it, all from the same stored integers.

Tools disagree in four ways: whether the bonus token counts, whether the prefill's token counts, whether the last round
counts whole or cut at a stop token, and whether the mean is over rounds (micro), over requests (macro) or over rounds
first and then over requests. T: output tokens with the prefill's, S: verify rounds, A: accepted drafted tokens before
clipping, a: those of one round. ddbench's own figure is the first; the others are what a reader of another tool's
output would see for the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddbench import metrics
from ddbench.metrics import Counts, Floats


@dataclass(frozen=True)
class Variant:
    """How one tool averages, as a function of the stored integers; the value is None where there are no rounds.

    ``name`` is a column name. ``bonus`` and ``prefill_token``: whether those tokens are counted.
    """

    name: str
    tool: str
    definition: str
    bonus: bool
    prefill_token: bool
    averaging: str
    value: Callable[[Counts], float | None]


def _mean(top: Floats, bottom: Floats) -> float | None:
    """Mean over requests of ``top / bottom``, those with a bottom of 0 left out."""
    kept = bottom > 0
    value = float(np.mean(top[kept] / bottom[kept])) if kept.any() else np.nan
    return value if np.isfinite(value) else None


def _total(top: Floats, bottom: Floats) -> float | None:
    """Sum of ``top`` over sum of ``bottom``."""
    value = float(top.sum() / bottom.sum()) if bottom.sum() > 0 else np.nan
    return value if np.isfinite(value) else None


def _vllm_request(counts: Counts) -> float | None:
    """1 + A / S of each request, 1 where it had no round; None where no request had one."""
    if not (counts.rounds > 0).any():
        return None
    drafted = np.divide(counts.accepted_raw, counts.rounds, out=np.zeros(len(counts)), where=counts.rounds != 0)
    value = float(np.mean(1.0 + drafted))
    return value if np.isfinite(value) else None


def _specdec_bench(counts: Counts) -> float | None:
    """T / (S + 1) of each request: its chunks of text are the prefill's token and one of each round."""
    return _mean(counts.output_tokens, counts.rounds + 1) if (counts.rounds > 0).any() else None


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "ddbench",
        "ddbench",
        "sum(T - 1) / sum(S)",
        True,
        False,
        "micro, clipped",
        metrics.acceptance_length,
    ),
    Variant(
        "vllm_counters",
        "vLLM metrics, `vllm bench serve`",
        "1 + sum(A) / sum(S)",
        True,
        False,
        "micro, unclipped",
        metrics.acceptance_length_unclipped,
    ),
    Variant(
        "vllm_request",
        "vLLM per request",
        "mean over requests of 1 + A / S, 1 where S = 0",
        True,
        False,
        "macro, unclipped",
        _vllm_request,
    ),
    Variant(
        "sglang_request",
        "SGLang per request (`spec_accept_length`)",
        "mean over requests of T / S",
        True,
        True,
        "macro, clipped",
        lambda c: _mean(c.output_tokens, c.rounds),
    ),
    Variant(
        "sglang_server",
        "SGLang `/server_info`",
        "sum(A + S) / sum(S), had the server counted every round of the run and no other",
        True,
        False,
        "micro, unclipped",
        lambda c: _total(c.accepted_raw + c.rounds, c.rounds),
    ),
    Variant(
        "specforge",
        "SpecForge",
        "sum(T) / sum(S)",
        True,
        True,
        "micro, clipped",
        lambda c: _total(c.output_tokens, c.rounds),
    ),
    Variant(
        "dflash_server",
        "DFlash benchmark, server mode",
        "mean over requests of T / S, as the server returns it",
        True,
        True,
        "macro, clipped",
        lambda c: _mean(c.output_tokens, c.rounds),
    ),
    Variant(
        "dflash_scripts",
        "DFlash / DDTree scripts",
        "mean over requests of the mean over rounds of a + 1",
        True,
        False,
        "macro, unclipped",
        lambda c: _mean(c.accepted_raw + c.rounds, c.rounds),
    ),
    Variant(
        "spec_bench",
        "Spec-Bench",
        "mean over all rounds of all prompts of a + 1",
        True,
        False,
        "micro, unclipped",
        lambda c: _total(c.accepted_raw + c.rounds, c.rounds),
    ),
    Variant(
        "specdec_bench",
        "specdec_bench",
        "mean over requests of T / (S + 1): the prefill's chunk is a step of size 1",
        True,
        True,
        "macro, clipped",
        _specdec_bench,
    ),
)
