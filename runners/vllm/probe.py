"""vLLM's environment, looked at from outside: found, asked what it holds, and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddbench.errors import ConfigError
from runners import environments
from runners.hosts import Host, LocalHost
from runners.vllm.versions import Capabilities, capabilities, too_old

ENGINE = "vllm"
KEY = environments.KEY


@dataclass(frozen=True)
class Environment:
    """A Python environment with vLLM in it. ``gpus``: names of the visible GPUs, None if they were not asked for."""

    python: str
    version: str
    facts: dict[str, Any]
    gpus: tuple[str, ...] | None

    @property
    def described(self) -> str:
        """The ``engine_version`` of an arm."""
        return f"vllm {self.version} torch {_plain(self.facts['torch'])}"

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.version, self.facts)


def probe(python: str | None, device: str, *, gpus: bool = False, host: Host | None = None) -> Environment:
    """Asks an environment what it holds. ``gpus`` adds the GPUs that its torch sees and takes some seconds.

    Raises:
        ConfigError: no interpreter, no vLLM in it, or one that is too old, or no GPU where one is needed.
    """
    host = host or LocalHost()
    path = environments.find_python(host, ENGINE, device, python)
    facts = environments.ask(host, ENGINE, path, cuda=gpus)
    environments.check_engine(ENGINE, path, facts)
    problem = too_old(facts["version"])
    if problem:
        raise ConfigError(KEY, path, problem)
    names = tuple(facts["gpus"]) if gpus else None
    if gpus and not names:
        raise ConfigError("engine.device", device, f"cpu, or a GPU that torch in {path} can see; it sees none")
    return Environment(path, _plain(facts["version"]), facts, names)


def check_plugin(environment: Environment, device: str = "cuda", host: Host | None = None) -> None:
    """Raises ConfigError unless the environment has this checkout's DDTree plug-in where vLLM will find it."""
    environments.check_plugin(host or LocalHost(), ENGINE, device, environment.python, environment.facts)


def _plain(version: str) -> str:
    return version.partition("+")[0]
