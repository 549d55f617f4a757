"""What a DDTREE engine of Qwen3-8B's dimensions holds: predicted before its start, and as PyTorch counts it after."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddbench.plugins.sglang.memory import GIB, Model, Setup, parts
from ddbench.plugins.sglang.options import Sizes
from experiments.evidence import dummy_models as dummy
from experiments.progress import say
from experiments.sglang_evidence.arms import Arm, Pair
from experiments.sglang_evidence.fleet import Fleet
from experiments.sglang_evidence.inside import DUMP
from experiments.sglang_evidence.job import Job

WIDTHS = (16, 64, 128)


def watched(arms: Sequence[Arm], folder: Path) -> list[Arm]:
    """The same arms; those of trees write down what they hold once they are up."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        replace(arm, hooks=(*arm.hooks, "memory"), env={**arm.env, DUMP: str(dump_of(arm.name, folder))})
        if arm.strategy == "ddtree"
        else arm
        for arm in arms
    ]


def dump_of(name: str, folder: Path) -> Path:
    return (folder / f"{name}_memory.json").resolve()


def told(arm: Arm, pair: Pair, batches: Sequence[int], version: str, folder: Path) -> dict[str, Any]:
    """GiB predicted and measured, the prediction by part, and how far they are apart."""
    predicted = {name: size / GIB for name, size in predict(arm, pair, batches, version).items()}
    dump = dump_of(arm.name, folder)
    measured = json.loads(dump.read_text())["allocated"] / GIB if dump.exists() else None
    total = sum(predicted.values())
    return {
        "predicted_gib": round(total, 3),
        "measured_gib": measured and round(measured, 3),
        "apart": measured and round(total / measured - 1, 4),
        "parts_gib": {name: round(size, 4) for name, size in predicted.items()},
    }


def predict(arm: Arm, pair: Pair, batches: Sequence[int], version: str) -> dict[str, int]:
    """Bytes by part, see `ddbench.plugins.sglang.memory.parts`."""
    nodes = arm.nodes or 0
    setup = Setup(
        version=version,
        sizes=Sizes(nodes + 1, arm.block, nodes if arm.width is None else min(arm.width, nodes)),
        requests=max(batches),
        captured=sorted(batches),
        context=pair.context,
        tokens=pair.tokens,
        backend=arm.backend,
        draft_backend=arm.backend,
        features=len(dummy.TAPS),
    )
    target = _model(dummy.LAYERS, 2 * dummy.target_parameters())
    return parts(setup, target, _model(dummy.DRAFT_LAYERS, 2 * dummy.drafter_parameters()))


def _model(layers: int, weight_bytes: int) -> Model:
    shape = dummy.SHAPE
    return Model(
        layers=layers,
        heads=int(shape["num_attention_heads"]),
        kv_heads=dummy.KV_HEADS,
        head_size=dummy.HEAD,
        hidden=int(shape["hidden_size"]),
        intermediate=int(shape["intermediate_size"]),
        vocabulary=int(shape["vocab_size"]),
        weight_bytes=weight_bytes,
    )


def measure(job: Job) -> dict[str, Any]:
    """Starts alone, of three verify widths; nothing is run on them."""
    models, batches = job.logs.parent / "dummy_models", job.batches or [1, 8, 32]
    dummy.write_dummy_pair(models)
    pair = Pair(models / "target", models / "dflash", models / "eagle3", "bfloat16", True, 4096, 65_536, memory=0.9)
    arms = watched([Arm(f"ddtree_{width}", "ddtree", width - 1) for width in WIDTHS], job.logs)
    result: dict[str, Any] = {"memory": {}, "asked": [arm.name for arm in arms]}
    with Fleet(job.python, pair, arms, batches, job.logs, start_s=job.limit_s) as fleet:
        result |= {"start_s": round(fleet.start_s, 1), "failed": fleet.failed}
        for arm in arms:
            if arm.name in fleet.engines:
                version = str(fleet.engines[arm.name].facts["sglang"])
                result["memory"][arm.name] = found = told(arm, pair, batches, version, job.logs)
                say(f"{arm.name}: predicted {found['predicted_gib']} GiB, measured {found['measured_gib']}")
    return result
