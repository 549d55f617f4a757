"""What a server of a DFlash drafter will hold, computed from the checkpoints before it starts; kept with every cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddbench.plugins.sglang.memory import GIB, Model, Setup, parts
from ddbench.plugins.sglang.options import Sizes
from ddbench.records import Arm
from runners.base import ModelFiles
from runners.sglang.flags import DEFAULT, SglangFlags
from runners.sglang.speculation import drafted_tokens
from runners.sglang.versions import KNOWN

BYTES = {"float32": 4}  # of a number of weights, activations and cache; others have 2


def predicted_gib(
    arm: Arm, model: ModelFiles, dtype: str, batch_sizes: tuple[int, ...], version: str
) -> dict[str, float] | None:
    """GiB by what they are for, and their ``total``; see :func:`ddbench.plugins.sglang.memory.parts`.

    None where it is not known: another strategy or version, quantized weights or cache, attention left to SGLang, or a
    model that is no folder here.
    """
    flags = SglangFlags.of_arm(arm.flags)
    folders = [Path(each) for each in (model.target, model.dflash) if each is not None]
    plain = flags.quantization is None and flags.kv_cache_dtype == "auto" and flags.attention_backend != DEFAULT
    if arm.strategy not in ("dflash", "ddtree") or version not in KNOWN or not plain:
        return None
    if len(folders) < 2 or not all((folder / "config.json").is_file() for folder in folders):
        return None
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    target, drafter = (_model(config, folder, dtype) for config, folder in zip(configs, folders, strict=True))
    block = model.block_size or int(configs[1]["block_size"])
    width = 1 + drafted_tokens(arm.strategy, arm.depth, arm.nodes, block)
    setup = Setup(
        version=version,
        sizes=Sizes(width, block, 1 if arm.strategy == "dflash" else min(arm.width or width, width - 1)),
        requests=flags.max_running_requests or max(batch_sizes),
        captured=batch_sizes,
        context=flags.context_length,
        tokens=flags.kv_tokens or 0,
        backend=flags.attention_backend,
        draft_backend=flags.attention_backend,
        features=len(configs[1]["dflash_config"]["target_layer_ids"]),
        ranks=flags.tensor_parallel,
    )
    found = {name: size / GIB for name, size in parts(setup, target, drafter).items()}
    return {name: round(size, 4) for name, size in (found | {"total": sum(found.values())}).items()}


def _model(config: dict[str, Any], folder: Path, dtype: str) -> Model:
    size = BYTES.get(dtype, 2)
    heads = int(config["num_attention_heads"])
    return Model(
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_size=int(config.get("head_dim") or config["hidden_size"] // heads),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        weight_bytes=_numbers(folder) * size,
        element=size,
        kv_element=size,
    )


def _numbers(folder: Path) -> int:
    """How many weights a checkpoint has, by the headers of its files."""
    from safetensors import safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118  not a mapping
                size = 1
                for side in file.get_slice(name).get_shape():
                    size *= side
                count += size
    return count
