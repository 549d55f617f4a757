"""The verb.

An engine pins a torch of its own, so it lives in a virtual environment of its own. What is installed is noted in it;
the same again takes no time. This checkout's plug-ins go in as a wheel without dependencies: engines find them by their
entry points, and nothing else of ddbench is used there.

``DDBENCH_TORCH_INDEX`` names an index with PyTorch's CPU wheels, where the default one has only CUDA builds; see
``scripts/bootstrap.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.bootstrap.environment import install_plugin, make
from experiments.bootstrap.recipes import Recipe, recipe_of
from experiments.hosts import hosts_of, reached
from experiments.progress import say, warn
from experiments.settings import EngineSettings
from experiments.typed import build
from runners import environments
from runners.hosts import Host, HostConfig, HostFailure
from runners.hosts.config import check_lists


@dataclass(frozen=True)
class BootstrapSettings:
    """``wheelhouse``: a folder with wheels, in the place of a package index. ``install_plugin``: whether an environment
    that is adopted (``engine.python``) gets our plug-in; one that is made always does."""

    wheelhouse: str | None = None
    install_plugin: bool = False

    def __post_init__(self) -> None:
        if self.wheelhouse is not None and not any(Path(self.wheelhouse).expanduser().glob("*.whl")):
            raise ConfigError("bootstrap.wheelhouse", self.wheelhouse, "a folder with wheels (*.whl), or null")


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Makes, completes or checks the environment of ``engine.name`` on the host, and says how to use it.

    Of a list of hosts, each: one that cannot be used stops no other, and is an error in the summary.

    Raises:
        ConfigError: an engine without an environment of its own, a host that cannot be used, or packages that cannot be
            installed.
    """
    engine = build(EngineSettings, config["engine"], "engine")
    asked = build(BootstrapSettings, config.get("bootstrap") or {}, "bootstrap")
    if config.get("dry_run"):
        raise ConfigError("dry_run", config["dry_run"], "false: bootstrap has no plan to list")
    recipe = recipe_of(engine.name, engine.device)
    if engine.url is not None:
        raise ConfigError("engine.url", engine.url, "null: an environment is made, and no server is asked")
    if isinstance(config["host"], Mapping):
        check_lists(config["host"])
    host = build(HostConfig, config["host"], "host")
    members = hosts_of(host)
    for member in members:
        member.check_files()
    if not host.hosts:
        return _on_host(host, engine, asked, recipe)
    each = [_of_list(member, engine, asked, recipe) for member in members]
    errors = [f"{one['host']}: {one['error']}" for one in each if "error" in one]
    summary: dict[str, Any] = {"hosts": each, "cells": {}}
    return summary | {"error": "; ".join(errors)} if errors else summary


def _of_list(config: HostConfig, engine: EngineSettings, asked: BootstrapSettings, recipe: Recipe) -> dict[str, Any]:
    """The same on one of several hosts, whatever is wrong with it."""
    try:
        return _on_host(config, engine, asked, recipe)
    except ConfigError as error:
        warn(f"host {config.name}: {error}")
        return {"host": config.name, "error": str(error)}


def _on_host(config: HostConfig, engine: EngineSettings, asked: BootstrapSettings, recipe: Recipe) -> dict[str, Any]:
    """Raises ConfigError for a host that cannot be used; one that is lost later is an error in the summary."""
    host = reached(config)
    try:
        return _bootstrapped(host, engine, asked, recipe)
    except HostFailure as failure:
        return {"host": config.name, "error": str(failure), "cells": {}}
    finally:
        host.close()


def _bootstrapped(host: Host, engine: EngineSettings, asked: BootstrapSettings, recipe: Recipe) -> dict[str, Any]:
    if _adopted(host, engine):
        return _adopt(host, engine, asked.install_plugin)
    wheelhouse = None if asked.wheelhouse is None else Path(asked.wheelhouse).expanduser()
    python = make(host, engine.name, engine.device, recipe, wheelhouse)
    facts = environments.ask(host, engine.name, python)
    environments.check_engine(engine.name, python, facts)
    facts = install_plugin(host, engine.name, python, facts)
    say(f"{_described(engine.name, facts)} is ready; engine.python=null finds it, or write engine.python={python}")
    return _summary(host, engine, python, facts)


def _adopted(host: Host, engine: EngineSettings) -> bool:
    """Whether the configuration names an interpreter other than the one of the environment that is made here."""
    given = engine.python or host.config.engine_python(engine.name)
    return given is not None and host.expand(given) != environments.default_python(host, engine.name, engine.device)


def _adopt(host: Host, engine: EngineSettings, install: bool) -> dict[str, Any]:
    """Checks an environment that somebody else made; only the plug-in is ever put into it."""
    python = environments.find_python(host, engine.name, engine.device, engine.python)
    facts = environments.ask(host, engine.name, python)
    environments.check_engine(engine.name, python, facts)
    if install:
        facts = install_plugin(host, engine.name, python, facts)
    problem = environments.plugin_problem(facts)
    state = "with this checkout's plug-in" if problem is None else f"without it for DDTree: {problem}"
    say(f"{_described(engine.name, facts)} in {python}, {state}")
    summary = _summary(host, engine, python, facts)
    if problem is None:
        return summary
    return summary | {"error": f"{problem}; bootstrap.install_plugin=true puts it there"}


def _summary(host: Host, engine: EngineSettings, python: str, facts: dict[str, Any]) -> dict[str, Any]:
    plugin = environments.our_hash() if environments.plugin_problem(facts) is None else None
    version = _described(engine.name, facts)
    return {"host": host.config.name, "python": python, "version": version, "plugin": plugin, "cells": {}}


def _described(engine: str, facts: Mapping[str, Any]) -> str:
    """Engine and torch, as an arm's ``engine_version`` names them."""
    plain = [str(facts[name]).partition("+")[0] for name in ("version", "torch")]
    return f"{engine} {plain[0]} torch {plain[1]}"
