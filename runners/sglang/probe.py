"""SGLang's environment, looked at from outside: found, asked what it holds, and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddbench.errors import ConfigError
from runners import environments
from runners.hosts import Host, LocalHost
from runners.sglang.versions import too_old

ENGINE = "sglang"


@dataclass(frozen=True)
class Environment:
    """A Python environment with SGLang in it. ``gpus``: names of the visible GPUs, None if they were not asked for."""

    python: str
    version: str
    facts: dict[str, Any]
    gpus: tuple[str, ...] | None

    @property
    def described(self) -> str:
        """The ``engine_version`` of an arm."""
        return f"sglang {self.version} torch {_plain(self.facts['torch'])}"


def probe(python: str | None, device: str, *, gpus: bool = False, host: Host | None = None) -> Environment:
    """Asks an environment what it holds. ``gpus`` adds the GPUs that its torch sees and takes some seconds.

    Raises:
        ConfigError: no interpreter, no SGLang in it, or one that is too old, or no GPU where one is needed.
    """
    host = host or LocalHost()
    path = environments.find_python(host, ENGINE, device, python)
    facts = environments.ask(host, ENGINE, path, cuda=gpus)
    environments.check_engine(ENGINE, path, facts)
    problem = too_old(facts["version"])
    if problem:
        raise ConfigError(environments.KEY, path, problem)
    names = tuple(facts["gpus"]) if gpus else None
    if gpus and not names:
        raise ConfigError("engine.device", device, f"a GPU that torch in {path} can see; it sees none")
    return Environment(path, _plain(facts["version"]), facts, names)


def check_plugin(environment: Environment, device: str = "cuda", host: Host | None = None) -> None:
    """Raises ConfigError unless the environment has this checkout's DDTree plug-in where SGLang will find it."""
    environments.check_plugin(host or LocalHost(), ENGINE, device, environment.python, environment.facts)


def _plain(version: str) -> str:
    return version.partition("+")[0]
