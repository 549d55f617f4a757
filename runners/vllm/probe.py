"""vLLM's environment, see `runners.probing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from runners.hosts import Host
from runners.probing import EngineEnvironment, check_plugin
from runners.vllm.versions import Capabilities, capabilities, too_old

__all__ = ["Environment", "check_plugin", "probe"]


@dataclass(frozen=True)
class Environment(EngineEnvironment):
    ENGINE: ClassVar[str] = "vllm"
    NEEDS: ClassVar[str] = "cpu, or a GPU"

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.version, self.facts)


def probe(python: str | None, device: str, *, gpus: bool = False, host: Host | None = None) -> Environment:
    """See `EngineEnvironment.look`."""
    return Environment.look(too_old, python, device, gpus, host)
