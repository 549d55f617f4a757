"""An engine's environment on a host: made, completed, or adopted as it is."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.bootstrap.recipes import Recipe
from experiments.bootstrap.wheel import write_wheel
from experiments.hosts import unwritable
from experiments.progress import say
from runners import environments
from runners.hosts import Completed, Host

MARK = ".ddbench"
INSTALL_TIMEOUT_S = 3 * 3600.0


def make(host: Host, engine: str, device: str, recipe: Recipe, wheelhouse: Path | None) -> str:
    """The interpreter of an environment made by ``recipe``; nothing is done where it is there already.

    ``wheelhouse``: a folder here with all wheels that are needed; nothing is then asked of a network.

    Raises:
        ConfigError: packages that cannot be installed, or no Python that can make environments.
    """
    folder = environments.default_folder(host, engine, device)
    python, mark = f"{folder}/bin/python", f"{folder}/{MARK}"
    known = host.run(["cat", mark])
    if known.ok and known.stdout.endswith(recipe.mark):
        return python
    say(f"making {folder} with {', '.join(recipe.packages)} (some minutes and gigabytes, once)")
    if not host.run([python, "-c", "pass"]).ok:
        maker = sys.executable if host.is_local else host.config.python
        if host.is_local and (said := unwritable(host, maker, folder)) is not None:
            raise ConfigError("experiment", "bootstrap", f"a folder {folder} that can be made ({said})")
        made = host.run([maker, "-m", "venv", folder], timeout_s=600.0)
        if not made.ok:
            raise ConfigError("host.python", maker, f"a Python that can make environments ({made.said})")
    _install(host, python, recipe, wheelhouse)
    if recipe.removed:
        _pip(host, python, "uninstall", "--yes", *recipe.removed)
    with tempfile.TemporaryDirectory(prefix="ddbench-") as scratch:
        note = Path(scratch) / "mark"
        note.write_text(recipe.mark, encoding="utf-8")
        host.put(note, mark)
    return python


def install_plugin(host: Host, engine: str, python: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Puts this checkout's plug-in into an environment, unless exactly it is there; returns what it holds then.

    Raises:
        ConfigError: it cannot be installed, or is not found afterwards.
    """
    if environments.plugin_problem(facts) is None:
        return facts
    with tempfile.TemporaryDirectory(prefix="ddbench-") as scratch:
        wheel = write_wheel(Path(scratch))
        place = str(wheel)
        if not host.is_local:
            place = host.path("wheels", wheel.name)
            host.put(wheel, place)
        _pip(host, python, "install", "--no-index", "--no-deps", "--force-reinstall", place)
    found = environments.ask(host, engine, python)
    problem = environments.plugin_problem(found)
    if problem is not None:
        raise ConfigError("engine.python", python, f"an environment that our plug-in can be put into ({problem})")
    say(f"the plug-in {environments.our_hash()} is in {python}")
    return found


def _install(host: Host, python: str, recipe: Recipe, wheelhouse: Path | None) -> None:
    if wheelhouse is not None:
        place = str(wheelhouse.resolve())
        if not host.is_local:
            place = host.path("wheelhouse")
            say(f"copying {wheelhouse} to host {host.config.name}")
            host.put(wheelhouse, place)
        _pip(host, python, "install", "--no-index", "--find-links", place, *recipe.packages)
        return
    index = os.environ.get("DDBENCH_TORCH_INDEX")
    if index and recipe.torch:
        _pip(host, python, "install", "--index-url", index, *recipe.torch)
    _pip(host, python, "install", *recipe.packages)


def _pip(host: Host, python: str, *arguments: str) -> Completed:
    """Raises ConfigError with pip's own last line when it fails."""
    command = [python, "-m", "pip", *arguments[:1], "--quiet", "--disable-pip-version-check", *arguments[1:]]
    done = host.run(command, timeout_s=INSTALL_TIMEOUT_S)
    if not done.ok:
        sys.stderr.write(done.stderr)
        raise ConfigError("experiment", "bootstrap", f"`pip {' '.join(arguments)}` to succeed ({done.said})")
    return done
