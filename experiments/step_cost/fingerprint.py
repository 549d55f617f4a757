"""The setup that a cost holds for: everything that decides the time of a step, and nothing else, as text.

Models go in by their dimensions: times do not depend on the values of weights, so that a shape may be measured with
random ones (the routing of a mixture of experts does depend on them, and is said in the cost's ``source``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ddbench
from ddbench.cost import CostModel
from ddbench.errors import ConfigError
from experiments.settings import ModelSettings
from runners.environments import our_hash
from runners.machine import machine_facts

PLUGGED = ("sglang", "vllm")  # engines that our plug-in runs in
ATTENTION = "own"  # of the verify passes of a SGLang server that ddbench starts: `ddbench.plugins.sglang.options`

FLAGS = (  # of an arm, those that decide times, where it has them
    "threads",
    "attention_backend",
    "model_runner",
    "page_size",
    "block_size",
    "cuda_graphs",
    "overlap",
    "async_scheduling",
    "tensor_parallel",
    "kv_cache_dtype",
    "quantization",
    "extra_args",
    "verify_attention",
)


def fingerprint(
    engine: str,
    version: str,
    build: str | None,
    gpu: str | None,
    cpu: str,
    model: ModelSettings,
    flags: Mapping[str, Any],
    clock: str = "wall",
) -> dict[str, str]:
    """As a cost file keeps it.

    Args:
        engine, version: name, and what it is built of.
        build: hash of the engine's source where it is part of ddbench (:func:`build_of`), else of our plug-in in it.
        gpu: its name; None where the engine ran on the ``cpu``.
        model: of which the dimensions count.
        flags: of an arm: ``dtype`` and what else of :data:`FLAGS` it has.
        clock: what the times are of: wall, or the processor's own.
    """
    without = [
        *(["threads"] if gpu is not None else []),
        *(["cuda_graphs"] if engine == "reference" and not flags.get("cuda_graphs") else []),  # off unless asked for
    ]
    kept = {name: _word(flags[name]) for name in FLAGS if name in flags and name not in without}
    if engine == "sglang":
        kept.setdefault("verify_attention", ATTENTION)
    return {
        "engine": engine,
        "engine_version": version,
        "build": _word(build),
        "device": gpu or f"cpu: {cpu}",
        "dtype": _word(flags.get("dtype")),
        "target": target_shape(model),
        "drafter": drafter_shape(model),
        "clock": clock,
        **kept,
    }


def target_shape(model: ModelSettings) -> str:
    target = model.target
    experts = f", {target.active_params} active" if target.active_params else ""
    return (
        f"{target.params} parameters{experts}, {target.layers} layers, {target.kv_heads} kv heads of "
        f"{target.head_dim}, vocabulary {target.vocab_size}"
    )


def drafter_shape(model: ModelSettings) -> str:
    drafter = model.dflash
    if drafter is None:
        return "none"
    return f"{drafter.params} parameters, {drafter.layers} layers, block {drafter.block_size}"


def build_of(engine: str) -> str | None:
    """This checkout's part of an engine, as ``status.json`` names it: the reference engine's source, or the plug-in."""
    if engine == "reference":
        from runners.worker import source_hash

        return source_hash(Path(ddbench.__file__).parent)
    return our_hash() if engine in PLUGGED else None


def served(
    engine: str, version: str | None, torch: str | None, model: ModelSettings, flags: Mapping[str, Any]
) -> dict[str, str]:
    """Of the engines of the evidence on this machine: a server's, by the versions of its environment."""
    facts = machine_facts()
    return fingerprint(
        engine,
        f"{engine} {str(version).partition('+')[0]} torch {str(torch).partition('+')[0]}",
        build_of(engine),
        facts["gpus"][0]["name"] if facts["gpus"] else None,
        facts["cpu"],
        model,
        flags,
    )


def _word(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def check_same_model(model: ModelSettings, cost: CostModel, place: str) -> None:
    """Raises ConfigError for a cost of another model: rounds of one at the times of another are nobody's."""
    for name, ours in (("target", target_shape(model)), ("drafter", drafter_shape(model))):
        theirs = cost.fingerprint.get(name)
        if ours != theirs:
            raise ConfigError("cost", place, f"one of the recording's {name} ({ours}), not of {theirs}")
