"""The engines that a sweep can choose from, by ``engine.name``."""

from __future__ import annotations

from experiments.engines.base import Engine
from experiments.engines.reference import MISSING, REFERENCE
from experiments.engines.vllm import VLLM

ENGINES: dict[str, Engine] = {"reference": REFERENCE, "vllm": VLLM}


def engine_of(name: str) -> Engine:
    """The engine of that name; one that only refuses where ddbench has no runner for it."""
    return ENGINES.get(name, MISSING)
