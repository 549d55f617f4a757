"""The Python environments that engines run in, on a host: where they are, what they hold, whose plug-in is in them.

Nothing of an engine is imported here: its own interpreter is asked, by :mod:`runners.probe_script`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ddbench
from ddbench.errors import ConfigError
from runners import probe_script
from runners.hosts import Host

KEY = "engine.python"
ROOT = Path(ddbench.__file__).resolve().parent.parent
TIMEOUT_S = 120.0
NAMES = {"vllm": "vLLM", "sglang": "SGLang"}


def default_folder(host: Host, engine: str, device: str) -> str:
    """Where ``experiment=bootstrap`` makes an engine's environment: in the checkout, or in the host's workdir."""
    name = f"{engine}-cpu" if device == "cpu" else engine
    return str(ROOT / ".venvs" / name) if host.is_local else host.path("venvs", name)


def default_python(host: Host, engine: str, device: str) -> str:
    """The interpreter in it."""
    return f"{default_folder(host, engine, device)}/bin/python"


def find_python(host: Host, engine: str, device: str, python: str | None) -> str:
    """The interpreter to use: ``python`` as configured, else the host's for this engine, else the one that bootstrap
    makes.

    Raises:
        ConfigError: there is none.
    """
    given = python if python is not None else host.config.engine_python(engine)
    name, made = NAMES.get(engine, engine), default_python(host, engine, device)
    if given is not None and host.expand(given) != made:
        found = shutil.which(str(Path(given).expanduser())) if host.is_local else _there(host, given)
        if found is None:
            allowed = f"an interpreter of an environment with {name}; there is no such program"
            raise ConfigError(KEY, given, allowed + _on(host))
        return str(Path(found).absolute()) if host.is_local else found
    if not (Path(made).is_file() if host.is_local else _there(host, made)):
        line = bootstrap_line(host.config.name, engine, device)
        folder = made.removesuffix("/bin/python")
        raise ConfigError(KEY, None, f"an interpreter with {name}{_on(host)}; `{line}` makes one in {folder}")
    return made


def ask(host: Host, engine: str, python: str, *, cuda: bool = False) -> dict[str, Any]:
    """What an environment holds, see :mod:`runners.probe_script`. ``cuda`` adds the GPUs that its torch sees.

    Raises:
        ConfigError: what ``python`` names is no Python interpreter that works.
        HostFailure: the host is down.
    """
    script = Path(probe_script.__file__)
    words = [str(script) if host.is_local else "-", engine, *(["--cuda"] if cuda else [])]
    done = host.run([python, *words], timeout_s=TIMEOUT_S, input=None if host.is_local else script.read_bytes())
    try:
        if done.ok:
            facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return facts
        why = done.said
    except (ValueError, IndexError) as error:
        why = str(error)
    raise ConfigError(KEY, python, f"a working Python interpreter{_on(host)} ({why})")


def check_engine(engine: str, python: str, facts: Mapping[str, Any]) -> None:
    """Raises ConfigError where an environment has no such engine, or no torch."""
    if facts["version"] is None or facts["torch"] is None:
        name = NAMES.get(engine, engine)
        raise ConfigError(KEY, python, f"an environment with {name} and torch; Python {facts['python']} has none there")


def our_hash() -> str | None:
    """The plug-in of this checkout, as :func:`runners.probe_script.plugin_hash` names it."""
    return probe_script.plugin_hash(Path(ddbench.__file__).resolve().parent)


def plugin_of(facts: Mapping[str, Any]) -> str | None:
    """Hash of the plug-in that an engine finds in an environment, whether its arm needs one or not; None without."""
    theirs = facts["plugin"] or {}
    found: str | None = theirs.get("hash") if theirs.get("entry_point") else None
    return found


def plugin_problem(facts: Mapping[str, Any]) -> str | None:
    """How the plug-in of an environment differs from this checkout's; None if it is the same and would be found."""
    theirs = plugin_of(facts)
    if theirs is None:
        return "no ddbench is installed there"
    if theirs != our_hash():
        return f"another version of ddbench is installed there (plug-in {theirs}, here {our_hash()})"
    return None


def check_plugin(host: Host, engine: str, device: str, python: str, facts: Mapping[str, Any]) -> None:
    """What every start of an engine checks: the host's plug-in must be this checkout's.

    Raises:
        ConfigError: it is not, or the engine would not find it; the line says what puts it there.
    """
    problem = plugin_problem(facts)
    if problem is not None:
        given = None if python == default_python(host, engine, device) else python
        line = bootstrap_line(host.config.name, engine, device, given)
        raise ConfigError(KEY, python, f"an environment with this ddbench ({problem}){_on(host)}: `{line}`")


def bootstrap_line(host: str, engine: str, device: str, python: str | None = None) -> str:
    """The command that makes an environment, or that puts our plug-in into the one of ``python``."""
    kind = device.partition(":")[0]
    words = [f"host={host}"] if host != "local" else []
    words += [f"engine={engine}", *([f"engine.device={kind}"] if kind == "cpu" or engine == "vllm" else [])]
    words += [f"engine.python={python}", "bootstrap.install_plugin=true"] if python is not None else []
    return f"python -m ddbench experiment=bootstrap {' '.join(words)}"


def _there(host: Host, python: str) -> str | None:
    """``python`` as the host would run it; None where it has no such program."""
    path = host.expand(python)
    return path if host.run([path, "-c", "pass"], timeout_s=TIMEOUT_S).rc == 0 else None


def _on(host: Host) -> str:
    return "" if host.is_local else f" on host {host.config.name}"
