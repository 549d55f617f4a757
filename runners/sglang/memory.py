"""What a server of a DFlash drafter will hold, computed from the checkpoints before it starts; kept with every cell.

Weights without files, which a server makes up (``--load-format dummy``), are counted by the configuration. A prediction
decides nothing where it is not known, and nothing where ``engine.flags.mem_fraction_static`` is given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.plugins.sglang.memory import BACKENDS, GIB, Defaults, Model, Setup, defaults, parts
from ddbench.plugins.sglang.options import Sizes
from ddbench.plugins.sglang.state_memory import Recurrent, element_of
from ddbench.records import Arm
from runners.base import EngineFailure, ModelFiles
from runners.gpu_memory import Gpu
from runners.hosts import Host
from runners.sglang.adaptive import widths_of
from runners.sglang.flags import SglangFlags
from runners.sglang.parameters import drafter_weights, target_weights
from runners.sglang.speculation import drafted_tokens
from runners.sglang.versions import KNOWN

BYTES = {"float32": 4}  # of a number of weights, activations and cache; others have 2
OTHERWISE_SHAPED = ("kv_lora_rank", "num_experts", "n_routed_experts", "num_local_experts")
DELTA_NETS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")  # model types with gated delta nets
MIB = 2**20


@dataclass(frozen=True)
class Prediction:
    """A server's sizes and its models'."""

    setup: Setup
    target: Model
    drafter: Model

    def gib(self) -> dict[str, float]:
        """GiB by what they are for, and their ``total``; see :func:`ddbench.plugins.sglang.memory.parts`."""
        found = {name: size / GIB for name, size in parts(self.setup, self.target, self.drafter).items()}
        return {name: round(size, 4) for name, size in (found | {"total": sum(found.values())}).items()}

    def fitted(self, free_bytes: int) -> Defaults:
        """What the server is to be told with so much memory free. Raises EngineFailure where it cannot fit."""
        try:
            return defaults(self.setup, self.target, self.drafter, free_bytes, self.setup.tokens)
        except ConfigError as error:
            raise EngineFailure(
                f"too little GPU memory, as computed before the start: {error} "
                "(a number in engine.flags.mem_fraction_static has it tried all the same)",
                "hopeless",
            ) from None


def predict(arm: Arm, model: ModelFiles, dtype: str, batch_sizes: tuple[int, ...], version: str) -> Prediction | str:
    """The prediction for an arm; a text that says why where it is not known. Raises nothing."""
    why = _unknown(arm, SglangFlags.of_arm(arm.flags), model, version)
    if why is not None:
        return why
    try:
        return _predicted(arm, model, dtype, batch_sizes, version)
    except KeyError as error:
        return f"a config.json has no {error.args[0]}"
    except (ArithmeticError, OSError, TypeError, ValueError) as error:  # among them sizes that the formulas do not have
        return f"{type(error).__name__}: {error}" if not isinstance(error, ConfigError) else str(error)


def _unknown(arm: Arm, flags: SglangFlags, model: ModelFiles, version: str) -> str | None:
    folders = [Path(each) for each in (model.target, model.dflash) if each is not None]
    rules = (
        (arm.strategy not in ("dflash", "ddtree"), f"{arm.strategy} has no DFlash drafter"),
        (version not in KNOWN, f"SGLang {version} is not known"),
        (flags.quantization is not None, "weights are quantized"),
        (flags.kv_cache_dtype != "auto", "the key-value cache is quantized"),
        (flags.attention_backend not in BACKENDS, f"attention {flags.attention_backend}"),
        (flags.page_size != 1, "pages of more than one token"),
        (not flags.cuda_graphs, "CUDA graphs are off"),
        (flags.tensor_parallel > 1, "tensor parallelism"),
        (len(folders) < 2, "no DFlash drafter is named"),
        (not all((folder / "config.json").is_file() for folder in folders), "a model is no folder of this machine"),
    )
    return next((reason for holds, reason in rules if holds), None)


def _predicted(arm: Arm, model: ModelFiles, dtype: str, batch_sizes: tuple[int, ...], version: str) -> Prediction | str:
    flags = SglangFlags.of_arm(arm.flags)
    assert model.dflash is not None
    folders = [Path(model.target), Path(model.dflash)]
    configs = [json.loads((folder / "config.json").read_text(encoding="utf-8")) for folder in folders]
    configs[0] = _text(configs[0])
    odd = [name for name in OTHERWISE_SHAPED if any(config.get(name) for config in configs)]
    if odd:
        return f"a model is not dense with multi-head attention ({odd[0]})"
    counted = (target_weights, drafter_weights)
    both = zip(configs, folders, counted, strict=True)
    target, drafter = (_model(config, _numbers(folder) or count(config), dtype) for config, folder, count in both)
    target = _hybrid(target, configs[0], flags.extra_args)
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
        chunk=flags.chunked_prefill_size if flags.chunked_prefill_size > 0 else flags.context_length,
        narrower=() if arm.policy is None else widths_of(arm)[:-1],
    )
    return Prediction(setup, target, drafter)


def free_bytes(host: Host, gpus: Sequence[Gpu]) -> int | None:
    """Least memory free on one of the GPUs now; None where it cannot be read. Raises HostFailure."""
    if not gpus:
        return None
    told = {key: gpu for gpu in host.facts()["gpus"] for key in (gpu["index"], gpu["uuid"])}
    found = [_free(told.get(each)) for each in gpus]
    known = [each for each in found if each is not None]
    return min(known) if len(known) == len(found) else None


def _free(gpu: dict[str, Any] | None) -> int | None:
    if gpu is None or gpu["memory_total_mib"] is None or gpu["memory_used_mib"] is None:
        return None
    return int((gpu["memory_total_mib"] - gpu["memory_used_mib"]) * MIB)


def _model(config: dict[str, Any], weights: int, dtype: str) -> Model:
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
        weight_bytes=weights * size,
        element=size,
        kv_element=size,
    )


def _text(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a configuration that is about text: of a Qwen3.5 form that also sees, a part of its own."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) and inner.get("model_type") in DELTA_NETS else config


def _hybrid(model: Model, config: dict[str, Any], extra_args: Sequence[str]) -> Model:
    """The same with recurrent states, and keys and values in the other layers alone, where the target is a hybrid."""
    if config.get("model_type") not in DELTA_NETS:
        return model
    recurrent = Recurrent(
        layers=config["layer_types"].count("linear_attention"),
        key_heads=int(config["linear_num_key_heads"]),
        value_heads=int(config["linear_num_value_heads"]),
        key_size=int(config["linear_key_head_dim"]),
        value_size=int(config["linear_value_head_dim"]),
        kernel=int(config["linear_conv_kernel_dim"]),
        element=element_of(extra_args),
    )
    return replace(model, layers=model.layers - recurrent.layers, recurrent=recurrent)


def _numbers(folder: Path) -> int:
    """How many weights a checkpoint has, by the headers of its files; 0 without files.

    Raises OSError, also for one that is broken.
    """
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118  not a mapping
                    size = 1
                    for side in file.get_slice(name).get_shape():
                        size *= side
                    count += size
        except SafetensorError as error:
            raise OSError(f"{path.name}: {error}") from None
    return count
