"""The command line of a SGLang server for one arm: a pure function of the arm and what it runs on.

Flags are those of SGLang 0.5.17 and 0.5.23 (``sglang/srt/server_args.py``), which have the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ddbench.records import Arm
from runners.base import ModelFiles
from runners.sglang import inherited
from runners.sglang.branches import Branch, Tree
from runners.sglang.flags import DEFAULT, SHARE, SglangFlags
from runners.sglang.speculation import Draft, environment, server_arguments

DRAFTER = (
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_attention_backend",
)
PLUGINS, NO_PLUGIN = "SGLANG_PLUGINS", "none"  # SGLang loads those that are named, all where none is


@dataclass(frozen=True)
class Machine:
    """Where the server runs.

    ``gpus``: value of ``CUDA_VISIBLE_DEVICES``, None to leave it as it is. ``inherited``: names of the variables that a
    server gets from there unless they are taken away. ``share`` of the GPU's memory for weights and pool, where the
    flags leave it open. ``path``: ``PYTHONPATH`` of a server that runs from a checkout, whose trees ``branch`` tells.
    """

    python: str
    dtype: str
    threads: int | None
    gpus: str | None = None
    inherited: tuple[str, ...] = ()
    share: float = SHARE
    path: str | None = None
    branch: Branch | None = None


@dataclass(frozen=True)
class Launch:
    """``{port}`` stands for the port; an environment variable of None is to be taken away."""

    argv: tuple[str, ...]
    environment: dict[str, str | None]


def build(arm: Arm, model: ModelFiles, machine: Machine, batch_sizes: Iterable[int]) -> Launch:
    """How to start the server of an arm. ``batch_sizes``: those of the plan, for the CUDA graphs."""
    settings = arguments(arm, model, machine, batch_sizes)
    argv = [machine.python, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", "{port}"]
    for name, value in settings.items():
        argv += _words(name, value)
    flags = SglangFlags.of_arm(arm.flags)
    return Launch((*argv, *flags.extra_args), _environment(arm, model, machine))


def arguments(arm: Arm, model: ModelFiles, machine: Machine, batch_sizes: Iterable[int]) -> dict[str, Any]:
    """Settings by the names of ``ServerArgs``, what is None or False left out; what runs is compared with them."""
    flags = SglangFlags.of_arm(arm.flags)
    settings: dict[str, Any] = {
        "model_path": model.target,
        "revision": model.target_revision,
        "load_format": "safetensors",
        "trust_remote_code": model.trust_remote_code,
        "skip_tokenizer_init": True,  # token ids go in and come out; the text is made here
        "incremental_streaming_output": True,
        "stream_interval": 1,
        "sampling_defaults": "openai",  # none from the model's generation config
        "dtype": machine.dtype,
        "quantization": flags.quantization,
        "kv_cache_dtype": flags.kv_cache_dtype,
        "context_length": flags.context_length,
        "max_running_requests": flags.max_running_requests,
        "max_total_tokens": flags.kv_tokens,
        "mem_fraction_static": flags.mem_fraction_static or machine.share,
        "chunked_prefill_size": flags.chunked_prefill_size,
        "page_size": flags.page_size,
        "tp_size": flags.tensor_parallel,
        "attention_backend": _or_none(flags.attention_backend),
        "sampling_backend": _or_none(flags.sampling_backend),
        "grammar_backend": "none",
        "min_free_slots_delay": flags.min_free_slots_delay,
        "random_seed": 1,
        "disable_radix_cache": not flags.prefix_cache,
        "disable_overlap_schedule": not flags.overlap,
        "disable_decode_cuda_graph": not flags.cuda_graphs,
        "disable_prefill_cuda_graph": flags.prefill_graphs is False,
        "log_level_http": "warning",
    }
    if flags.cuda_graphs and flags.attention_backend != DEFAULT:
        settings["cuda_graph_bs_decode"] = graph_sizes(batch_sizes)
    draft = draft_of(arm, model)
    return {
        name: value
        for name, value in (settings | _speculation(arm, draft, machine.branch)).items()
        if value is not None and value is not False
    }


def _speculation(arm: Arm, draft: Draft | None, branch: Branch | None) -> dict[str, Any]:
    """Of a branch's tree it is the drafter alone that is told as elsewhere."""
    if draft is None:
        return {}
    told = server_arguments(draft)
    if arm.strategy != "ddtree" or branch is None:
        return told
    return {name: value for name, value in told.items() if name in DRAFTER} | branch.settings(tree_of(draft))


def tree_of(draft: Draft) -> Tree:
    return Tree(draft.width, draft.depth, draft.nodes, draft.block, draft.drafter)


def draft_of(arm: Arm, model: ModelFiles) -> Draft | None:
    """What an arm drafts; None for autoregressive decoding."""
    if arm.strategy == "autoregressive":
        return None
    eagle = arm.strategy == "eagle"
    drafter = model.eagle if eagle else model.dflash
    assert drafter is not None
    return Draft(
        strategy=arm.strategy,
        width=arm.width,
        depth=arm.depth,
        nodes=arm.nodes,
        block=None if eagle else model.block_size,
        drafter=drafter,
        revision=model.eagle_revision if eagle else model.dflash_revision,
        backend=_or_none(arm.flags["attention_backend"]),
        force_spine=arm.force_spine,
        min_log_prob=arm.min_log_prob,
    )


def graph_sizes(batch_sizes: Iterable[int]) -> list[int]:
    """Batch sizes to capture graphs for: all planned ones, and powers of two for a batch that thins out at the end."""
    sizes = set(batch_sizes)
    return sorted(sizes | {2**power for power in range(max(sizes).bit_length()) if 2**power <= max(sizes)})


def _words(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is True:
        return [flag]
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]


def _or_none(name: str) -> str | None:
    return None if name == DEFAULT else name


def _environment(arm: Arm, model: ModelFiles, machine: Machine) -> dict[str, str | None]:
    draft = draft_of(arm, model)
    own = environment(draft) if draft is not None else {}
    if draft is not None and arm.strategy == "ddtree" and machine.branch is not None:
        own = machine.branch.variables(tree_of(draft))
    changed: dict[str, str | None] = {**inherited.unset(machine.inherited), **own}
    if machine.path is not None:
        changed |= {"PYTHONPATH": machine.path, PLUGINS: NO_PLUGIN}
    if machine.threads is not None:
        changed["OMP_NUM_THREADS"] = str(machine.threads)
    if machine.gpus is not None:
        changed |= {"CUDA_VISIBLE_DEVICES": machine.gpus, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if not any((model.target_revision, model.dflash_revision, model.eagle_revision)):
        changed["HF_HUB_OFFLINE"] = "1"  # all are folders: nothing is to be looked up
    return changed
