"""What bounds a decode step from below: the bytes of the target's weights, and how fast the GPU's memory gives them.

Both are integers found where the measurement runs and stored with each cell; ratios are the report's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.settings import Settings
from experiments.workloads import asset_path
from runners.devices import gpus_of
from runners.gpu_memory import open_gpu

WIDE = {"F64", "F32", "F16", "BF16"}  # held in the engine's own dtype, whatever the checkpoint's
BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4}
BITS |= {"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8}
ELSEWHERE = ("visual.", "vision_tower.", "mtp.")  # parts of a checkpoint that decoding does not read


@dataclass(frozen=True)
class Roofline:
    """Bytes of the target's weights that one decode step reads, and bytes a second of a GPU's memory; None: unknown."""

    target_weight_bytes: int | None
    gpu_bytes_per_s: int | None


UNKNOWN = Roofline(None, None)


def roofline(settings: Settings, revision: str | None) -> Roofline:
    """Both for the target of a run. Read after the engine has started: a model from a hub is then in the cache."""
    return Roofline(_weight_bytes(settings, revision), _bytes_per_s(settings))


def read_bytes(header: Mapping[str, Any], tied: bool, itemsize: int) -> int:
    """Bytes of one safetensors file's weights that a decode step reads, from the file's ``header``.

    Floating-point weights count ``itemsize`` bytes an element, as the engine holds them; quantized ones as they are
    stored. A table of embeddings is read a row a token, so it counts only where it is the output head as well.
    """
    total = 0
    for name, tensor in header.items():
        if name == "__metadata__" or any(part in name for part in ELSEWHERE):
            continue
        if name.endswith("embed_tokens.weight") and not tied:
            continue
        elements = 1
        for size in tensor["shape"]:
            elements *= size
        bits = 8 * itemsize if tensor["dtype"] in WIDE else BITS[tensor["dtype"]]
        total += elements * bits // 8
    return total


def _weight_bytes(settings: Settings, revision: str | None) -> int | None:
    """None for random models, for a mixture of experts (a step reads what it is routed to), and where the engine
    quantizes by itself or is somebody else's server."""
    model, engine = settings.model, settings.engine
    if model.kind == "random" or model.target.active_params is not None:
        return None
    if engine.flags.get("quantization") is not None or engine.url is not None:
        return None
    folder = _folder(model.target.source, revision)
    headers = [_header(path) for path in sorted(folder.glob("*.safetensors"))] if folder is not None else []
    tied = not any(name.endswith("lm_head.weight") for header in headers for name in header)
    itemsize = 4 if engine.dtype == "float32" else 2
    return sum(read_bytes(header, tied, itemsize) for header in headers) or None


def _folder(source: str, revision: str | None) -> Path | None:
    """Where the model's files are: a folder of its own, or the cache's."""
    if asset_path(source).is_dir():
        return asset_path(source)
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(source, "config.json", revision=revision)
    return Path(cached).parent if isinstance(cached, str) else None


def _header(path: Path) -> dict[str, Any]:
    """The JSON header of a safetensors file: 8 bytes of length, little-endian, then the text."""
    with path.open("rb") as stream:
        header: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return header


def _bytes_per_s(settings: Settings) -> int | None:
    """As ``host.memory_bytes_per_s`` says, else what the driver gives: highest memory clock x bus width, two transfers
    a clock. None on a CPU, whatever a host's configuration says of its card, where the driver does not say, and on
    another host."""
    if settings.engine.device == "cpu":
        return None
    if settings.host.memory_bytes_per_s is not None:
        return settings.host.memory_bytes_per_s
    if settings.host.kind != "local":
        return None  # nvidia-smi there does not tell the width of the memory bus
    try:
        gpus = gpus_of(settings.engine.device, 1, settings.host)
    except ConfigError:
        return None
    opened = open_gpu(gpus[0]) if gpus else None
    if opened is None:
        return None
    nvml, handle = opened
    try:
        megahertz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
        bits = nvml.nvmlDeviceGetMemoryBusWidth(handle)
    except nvml.NVMLError:
        return None
    return int(megahertz) * 1_000_000 * 2 * int(bits) // 8
