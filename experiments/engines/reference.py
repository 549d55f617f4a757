"""The built-in engine."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from experiments.engines.base import Engine, Shapes
from experiments.hosts import reached
from experiments.settings import Settings
from experiments.shapes import Shape
from runners.base import Runner, ServerOptions, ServerSpec
from runners.reference import ReferenceRunner, engine_version

GRAPHS = "cuda_graphs"


class ReferenceEngine:
    """See :class:`experiments.engines.base.Engine`."""

    server_per_arm = False
    most_in_flight: int | None = None

    def version(self, settings: Settings) -> str:
        reached(settings.host)
        return engine_version(settings.host)

    def refuse_all(self, settings: Settings) -> str | None:
        if settings.load.kind == "open":
            return "the reference engine runs a closed loop only"
        return None

    def flags(self, settings: Settings, shapes: Shapes) -> dict[str, Any]:
        flags = dict(settings.engine.flags)
        meant = next((name for name in flags if name != GRAPHS and get_close_matches(name, [GRAPHS], cutoff=0.8)), None)
        if meant is not None:
            raise ConfigError(f"engine.flags.{meant}", flags[meant], f"{GRAPHS}, which this engine knows")
        _check_graphs(settings, flags.get(GRAPHS))
        return flags

    def own_flags(self, settings: Settings, strategy: str, flags: dict[str, Any]) -> dict[str, Any]:
        return flags

    def refuse(self, settings: Settings, strategy: str, shape: Shape, flags: dict[str, Any]) -> str | None:
        return None

    def refuse_sampling(self, settings: Settings, strategy: str, temperature: float) -> str | None:
        return None

    def default_arms(self, settings: Settings) -> Shapes:
        raise ConfigError("engine.default_arms", True, f"false: {settings.engine.name} has no defaults of its own")

    def default_flags(self, flags: dict[str, Any]) -> dict[str, Any]:
        return flags

    def options(self, settings: Settings, arms: Sequence[Arm]) -> ServerOptions | None:
        return None

    def runner(self, spec: ServerSpec) -> Runner:
        return ReferenceRunner(spec)


def _check_graphs(settings: Settings, graphs: object) -> None:
    """Raises ConfigError where passes would run without graphs and the cells would say that they had them."""
    target, name = settings.model.target, f"engine.flags.{GRAPHS}"
    if graphs not in (True, False, None):
        raise ConfigError(name, graphs, "true or false")
    if not graphs:
        return
    if settings.engine.device.startswith("cpu"):
        raise ConfigError(name, True, "false on the CPU, which has no CUDA graphs")
    if target.attention == "hybrid":
        raise ConfigError(name, True, f"false for {settings.model.name}: a hybrid's passes run without")
    if target.active_params is not None:
        raise ConfigError(name, True, f"false for {settings.model.name}: its passes ask the host which experts to run")


REFERENCE: Engine = ReferenceEngine()
