"""What a sweep must know of an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ddbench.records import Arm
from experiments.settings import Settings
from experiments.shapes import Shape
from runners.base import Runner, ServerOptions, ServerSpec

Shapes = Sequence[tuple[str, Shape]]  # strategy and shape


class Engine(Protocol):
    """An engine as the plan and the sweep see it; nothing here starts one.

    ``server_per_arm``: an arm has a server of its own, whose start is worth sparing. ``most_in_flight``: the largest
    batch size that it can run; None: any.
    """

    server_per_arm: bool
    most_in_flight: int | None

    def version(self, settings: Settings) -> str:
        """What the engine is built of, for ``engine_version``. Raises ConfigError where it cannot be found."""

    def refuse_all(self, settings: Settings) -> str | None:
        """Why the engine can run nothing of these settings; None if it can."""

    def flags(self, settings: Settings, shapes: Shapes) -> dict[str, Any]:
        """Engine settings that must be equal in all arms, as they come out for these shapes.

        Raises:
            ConfigError: a setting that cannot be.
        """

    def own_flags(self, settings: Settings, strategy: str, flags: dict[str, Any]) -> dict[str, Any]:
        """Those flags as an arm of that strategy has them, where the engine forces others on it."""

    def refuse(self, settings: Settings, strategy: str, shape: Shape, flags: dict[str, Any]) -> str | None:
        """Why the engine cannot run one arm; None if it can."""

    def refuse_sampling(self, settings: Settings, strategy: str, temperature: float) -> str | None:
        """Why the engine cannot sample at that temperature with a strategy; None if it can."""

    def default_arms(self, settings: Settings) -> Shapes:
        """The arms to be measured with the engine's own choice of settings too (``engine.default_arms``)."""

    def default_flags(self, flags: dict[str, Any]) -> dict[str, Any]:
        """The flags of such an arm."""

    def options(self, settings: Settings, arms: Sequence[Arm]) -> ServerOptions | None:
        """What a server is told beside its arms, for the ``arms`` to be measured; None for no server."""

    def runner(self, spec: ServerSpec) -> Runner:
        """What drives the engine."""
