"""What the command line of this job says itself, beside all that the configuration files do."""

from __future__ import annotations

import sys

from hydra.core.hydra_config import HydraConfig


def overrides() -> list[str]:
    """As ``key=value``, with Hydra's signs before the key; those of one job of a multirun."""
    if not HydraConfig.initialized():
        return [word for word in sys.argv[1:] if "=" in word or word.startswith("~")]
    return list(HydraConfig.get().overrides.task)


def key_of(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
