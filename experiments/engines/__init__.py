"""The engines that a sweep can choose from, by ``engine.name``."""

from __future__ import annotations

from experiments.engines.base import Engine
from experiments.engines.published import PUBLISHED
from experiments.engines.reference import REFERENCE
from experiments.engines.sglang import SGLANG
from experiments.engines.vllm import VLLM

ENGINES: dict[str, Engine] = {"reference": REFERENCE, "sglang": SGLANG, "vllm": VLLM, "published": PUBLISHED}


def engine_of(name: str) -> Engine:
    """The engine of that name, which the settings have checked."""
    return ENGINES[name]
