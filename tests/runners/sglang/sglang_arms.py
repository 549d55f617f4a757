"""Arms and models for the tests of the SGLang runner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddbench.records import Arm
from runners.base import ModelFiles
from runners.sglang.command import Launch, Machine, build
from runners.sglang.flags import Demands, SglangFlags, resolve

GIVEN = SglangFlags(
    attention_backend="triton",
    sampling_backend="pytorch",
    page_size=1,
    cuda_graphs=True,
    prefill_graphs=False,
    overlap=True,
    prefix_cache=False,
    tensor_parallel=1,
    mem_fraction_static=0.85,
    kv_tokens=None,
    kv_cache_dtype="auto",
    quantization=None,
    context_length=4096,
    max_running_requests=None,
    chunked_prefill_size=8192,
    min_free_slots_delay=1,
    extra_args=(),
)
GPU = Demands("cuda", 8, 64, 40960)
FOLDERS = ModelFiles("/m/target", dflash="/m/dflash", eagle="/m/eagle", block_size=16, mask_token_id=1)
HUB = ModelFiles("org/target", "a" * 40, "org/dflash", "b" * 40, "org/eagle", "c" * 40, block_size=16)
SHAPES: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "dflash": {"depth": 15},
    "eagle": {"width": 4, "depth": 7, "nodes": 15},
    "ddtree": {"width": 4, "depth": 7, "nodes": 32},
}


def arm(strategy: str, given: SglangFlags = GIVEN, demands: Demands = GPU, **changes: Any) -> Arm:
    shape = {"width": None, "depth": None, "nodes": None, **SHAPES[strategy]}
    made = Arm(
        engine="sglang",
        engine_version="sglang 0.5.17 torch 2.11.0",
        strategy=strategy,
        **shape,
        force_spine=False,
        min_log_prob=None,
        model="m",
        target="t",
        target_revision=None,
        drafter=None,
        drafter_revision=None,
        host="local",
        flags={**resolve(given, demands), "device": demands.device, "dtype": "bfloat16"},
    )
    return replace(made, **changes)


def launch(made: Arm, model: ModelFiles = FOLDERS, gpus: str | None = "0") -> Launch:
    return build(made, model, Machine("py", "bfloat16", 1, gpus), (1, 8))


def values(made: Launch, flag: str) -> list[str]:
    """What follows a flag, which must be there once."""
    assert made.argv.count(flag) == 1, flag
    rest = made.argv[made.argv.index(flag) + 1 :]
    end = next((index for index, word in enumerate(rest) if word.startswith("--")), len(rest))
    return list(rest[:end])


def value(made: Launch, flag: str) -> str:
    (found,) = values(made, flag)
    return found
