"""The engine's environment, looked at from outside: found, asked what it holds, and checked."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ddbench
from ddbench.errors import ConfigError
from runners.vllm import probe_script
from runners.vllm.versions import Capabilities, capabilities, too_old

KEY = "engine.python"
ROOT = Path(ddbench.__file__).resolve().parent.parent
TIMEOUT_S = 120.0


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


def default_python(device: str) -> Path:
    """Interpreter of the environment that ``experiment=bootstrap`` makes for a device."""
    return ROOT / ".venvs" / ("vllm-cpu" if device == "cpu" else "vllm") / "bin" / "python"


def find_python(python: str | None, device: str) -> str:
    """The interpreter to use: ``python``, or for None the one that ``experiment=bootstrap`` made.

    Raises:
        ConfigError: there is none.
    """
    if python is None:
        made = default_python(device)
        if not made.is_file():
            line = f"python -m ddbench experiment=bootstrap engine=vllm engine.device={device.partition(':')[0]}"
            raise ConfigError(KEY, None, f"an interpreter with vLLM; `{line}` makes one in {made.parents[1]}")
        return str(made)
    found = shutil.which(str(Path(python).expanduser()))
    if found is None:
        raise ConfigError(KEY, python, "an interpreter of an environment with vLLM; there is no such program")
    return found


def probe(python: str | None, device: str, *, gpus: bool = False) -> Environment:
    """Asks an environment what it holds. ``gpus`` adds the GPUs that its torch sees and takes some seconds.

    Raises:
        ConfigError: no interpreter, no vLLM in it, or one that is too old, or no GPU where one is needed.
    """
    path = find_python(python, device)
    command = [path, str(Path(probe_script.__file__)), *(["--cuda"] if gpus else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise ConfigError(KEY, path, f"a working Python interpreter ({said[-1] if said else 'no answer'})") from None
    if facts["version"] is None or facts["torch"] is None:
        raise ConfigError(KEY, path, f"an environment with vLLM and torch; Python {facts['python']} has none there")
    problem = too_old(facts["version"])
    if problem:
        raise ConfigError(KEY, path, problem)
    names = tuple(facts["gpus"]) if gpus else None
    if gpus and not names:
        raise ConfigError("engine.device", device, f"cpu, or a GPU that torch in {path} can see; it sees none")
    return Environment(path, _plain(facts["version"]), facts, names)


def check_plugin(environment: Environment) -> None:
    """Raises ConfigError unless the environment has this checkout's DDTree plug-in where vLLM will find it."""
    ours = probe_script.plugin_hash(Path(ddbench.__file__).resolve().parent)
    theirs = environment.facts["plugin"] or {}
    if theirs.get("entry_point") and theirs.get("hash") == ours:
        return
    state = "another version of ddbench" if theirs.get("entry_point") else "no ddbench"
    line = f"{environment.python} -m pip install --no-deps {ROOT}"
    raise ConfigError(
        KEY, environment.python, f"an environment with this ddbench ({state} is installed there): `{line}`"
    )


def _plain(version: str) -> str:
    return version.partition("+")[0]
