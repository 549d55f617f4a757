"""Arms and models for the tests of the vLLM runner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddbench.records import Arm
from runners.base import ModelFiles
from runners.vllm.command import Launch, Machine, build
from runners.vllm.flags import Demands, VllmFlags, resolve
from runners.vllm.versions import capabilities

GIVEN = VllmFlags(
    model_runner="V1",
    attention_backend="auto",
    block_size=None,
    cuda_graphs=None,
    async_scheduling=False,
    prefix_cache=False,
    tensor_parallel=1,
    gpu_memory_utilization=0.9,
    kv_cache_gib=None,
    kv_cache_dtype="auto",
    quantization=None,
    max_model_len=4096,
    max_num_seqs=None,
    max_num_batched_tokens=None,
    extra_args=(),
)
GPU = Demands("cuda", 8, 64, 40960, 147_456, False)
CPU = replace(GPU, device="cpu", context_length=2048, cache_bytes=11_264)
FOLDERS = ModelFiles("/m/target", dflash="/m/dflash", eagle="/m/eagle", block_size=16, mask_token_id=1)
HUB = ModelFiles("org/target", "a" * 40, "org/dflash", "b" * 40, "org/eagle", "c" * 40, block_size=16)
SHAPES: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "dflash": {"depth": 15},
    "eagle": {"width": 1, "depth": 3, "nodes": 3},
    "ddtree": {"width": 4, "depth": 7, "nodes": 32},
}


def arm(strategy: str, given: VllmFlags = GIVEN, demands: Demands = GPU, **changes: Any) -> Arm:
    shape = {"width": None, "depth": None, "nodes": None, **SHAPES[strategy]}
    made = Arm(
        engine="vllm",
        engine_version="vllm 0.32.0 torch 2.13.0",
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


def launch(made: Arm, model: ModelFiles = FOLDERS, version: str = "0.32.0", gpus: str | None = "0") -> Launch:
    cpu = made.flags["device"] == "cpu"
    machine = Machine("py", made.flags["device"], "float32" if cpu else "bfloat16", 1, None if cpu else gpus)
    return build(made, model, machine, (1, 8), capabilities(version))


def value(made: Launch, flag: str) -> str:
    """What follows a flag, which must be there once."""
    assert made.argv.count(flag) == 1, flag
    return made.argv[made.argv.index(flag) + 1]
