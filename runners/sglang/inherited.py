"""Variables of our own environment that would change what one arm drafts or how it runs: no server gets them.

SGLang's are those of ``sglang/srt/environ.py`` in 0.5.17 and 0.5.23 that bear on speculative decoding or make up its
results; what an arm is to have of them it is given by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddbench.plugins.sglang import options

OURS = "DDTREE_"
PREFIXES = (
    OURS,
    "SGLANG_SIMULATE_",
    "SGLANG_DFLASH_",
    "SGLANG_DDTREE_",
    "SGLANG_DSPARK_",
    "SGLANG_SPEC_",
    "SGLANG_TEST_",
    "SGLANG_NGRAM_",
)
NAMES = (
    *(options.WIDTH, options.DEPTH, options.NODES, options.MIN_LOG_PROB, options.FORCE_SPINE, options.TRACE),
    *(options.RECORD, options.RECORD_NODES, options.POLICY, options.COSTS, options.WIDTHS, options.ATTENTION),
    "SGLANG_SIMULATE_ACC_LEN",
    "SGLANG_SIMULATE_ACC_METHOD",
    "SGLANG_SIMULATE_ACC_TOKEN_MODE",
    "SGLANG_SIMULATE_ACC_GREEDY",
    "SGLANG_DFLASH_EAGER_DRAFT_SAMPLER",
    "SGLANG_DFLASH_PREFILL_REFILL_TARGET",
    "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH",
    "SGLANG_ENABLE_DETERMINISTIC_INFERENCE",
    "SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
    "SGLANG_ENABLE_SINGLE_CG_DRAFT",
    "SGLANG_ENABLE_SPEC_V2",
    "SGLANG_ENABLE_SPLITKV_VERIFY",
    "SGLANG_OPT_USE_GUMBEL_SAMPLE",
    "SGLANG_RAGGED_VERIFY_MODE",
    "SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND",
    "SGLANG_SPEC_TP_SYNC",
    "SGLANG_TEST_RAGGED_VERIFY_FORCE_UNIFORM_CAPTURE",
    "SGLANG_TEST_RETRACT",
)


def unset(environment: Iterable[str]) -> dict[str, str | None]:
    """What takes them away: the known ones, since a host's environment is not seen, and those of ``environment``."""
    seen = [name for name in environment if name.startswith(PREFIXES)]
    return dict.fromkeys((*NAMES, *sorted(set(seen) - set(NAMES))))
