"""The built-in engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from experiments.engines.base import Engine, Shapes
from experiments.hosts import reached
from experiments.settings import Settings
from experiments.shapes import Shape
from runners.base import Runner, ServerOptions, ServerSpec
from runners.reference import ReferenceRunner, engine_version


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
        return dict(settings.engine.flags)

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


REFERENCE: Engine = ReferenceEngine()
