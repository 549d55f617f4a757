"""An engine's environment, looked at from outside: found, asked what it holds, and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ddbench.errors import ConfigError
from runners import environments
from runners.hosts import Host, LocalHost


@dataclass(frozen=True)
class EngineEnvironment:
    """A Python environment with an engine in it. ``gpus``: names of the visible GPUs, None if they were not asked for.

    An engine's own kind says ``ENGINE``, and in ``NEEDS`` what its device may be.
    """

    ENGINE: ClassVar[str]
    NEEDS: ClassVar[str] = "a GPU"

    python: str
    version: str
    facts: dict[str, Any]
    gpus: tuple[str, ...] | None

    @property
    def described(self) -> str:
        """The ``engine_version`` of an arm."""
        return f"{self.ENGINE} {self.version} torch {_plain(self.facts['torch'])}"

    @classmethod
    def look(
        cls, too_old: Callable[[str], str | None], python: str | None, device: str, gpus: bool, host: Host | None
    ) -> Self:
        """Asks an environment what it holds. ``gpus`` adds the GPUs that its torch sees and takes some seconds.

        Raises:
            ConfigError: no interpreter, no engine in it, or one that is too old, or no GPU where one is needed.
        """
        host = host or LocalHost()
        path = environments.find_python(host, cls.ENGINE, device, python)
        facts = environments.ask(host, cls.ENGINE, path, cuda=gpus)
        environments.check_engine(cls.ENGINE, path, facts)
        problem = too_old(facts["version"])
        if problem:
            raise ConfigError(environments.KEY, path, problem)
        names = tuple(facts["gpus"]) if gpus else None
        if gpus and not names:
            raise ConfigError("engine.device", device, f"{cls.NEEDS} that torch in {path} can see; it sees none")
        return cls(path, _plain(facts["version"]), facts, names)


def check_plugin(environment: EngineEnvironment, device: str = "cuda", host: Host | None = None) -> None:
    """Raises ConfigError unless the environment has this checkout's DDTree plug-in where its engine will find it."""
    environments.check_plugin(host or LocalHost(), environment.ENGINE, device, environment.python, environment.facts)


def _plain(version: str) -> str:
    return version.partition("+")[0]
