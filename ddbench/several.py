"""``workloads=[a,b]``: several entries of the config group ``workload`` in one job.

Each is composed as ``workload=<name>`` with the rest of the command line would be, so that its cells are those of a run
of its own. What a job is told has them under ``workloads``, by name, and the first one as ``workload``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf

from ddbench.errors import ConfigError
from ddbench.overrides import key_of, overrides

KEY = "workloads"
GROUP = "workload"
SHARED = ("max_prompts", "categories", "turns", "contexts", "warmup_path")  # settings that all of them may be given


def with_workloads(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The composed configuration of a job with all that is under ``workloads``; ``folder`` is that of the primary one.

    Raises:
        ConfigError: no list of different names, a name that the group does not have, or settings of one workload beside
            several.
    """
    asked, search = overrides(), _search()
    _refuse_lists(asked)
    given = config.get(KEY)
    if given is None or isinstance(given, Mapping):
        return config
    names = _names(given)
    _refuse_single(asked)
    kept = [*search, *(each for each in asked if key_of(each) != KEY)]
    composed = {name: _composed(folder, kept, name) for name in names}
    labels = Counter(str(each.get("name")) for each in composed.values())
    for label, count in labels.items():
        if count > 1:
            raise ConfigError(KEY, names, f"workloads with names of their own; {count} are called {label!r}")
    return {**config, GROUP: deepcopy(composed[names[0]]), KEY: composed}


def _names(given: object) -> list[str]:
    listed: list[Any] = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    names = [name for name in listed if isinstance(name, str) and name]
    if not names or len(names) < len(listed):
        raise ConfigError(KEY, given, "a list of names of the group workload, at least one, or null for workload alone")
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(KEY, names, f"each workload once; {name!r} comes {count} times")
    return names


def _search() -> list[str]:
    """The override that tells Hydra where else this job's configuration files are, if they are."""
    if not HydraConfig.initialized():
        return []
    sources = HydraConfig.get().runtime.config_sources
    more = [f"{each.schema}://{each.path}" for each in sources if each.provider not in _OWN]
    return [f"hydra.searchpath=[{','.join(more)}]"] if more else []


_OWN = ("hydra", "main", "schema")  # sources that every composition has


def _refuse_lists(asked: Sequence[str]) -> None:
    """Hydra would lay the workloads of ``workload=[a,b]`` over each other."""
    for each in asked:
        key, _, value = each.partition("=")
        if key == GROUP and value.startswith("["):
            raise ConfigError(GROUP, value, f"one name; several are measured with {KEY}={value}")


def _refuse_single(asked: Sequence[str]) -> None:
    for each in asked:
        key, value = key_of(each), each.partition("=")[2]
        if key.partition("@")[0] == GROUP:
            raise ConfigError(key, value, f"left out: {KEY} names all that is measured")
        group, _, name = key.partition(".")
        if group == GROUP and name not in SHARED:
            allowed = f"left out beside {KEY}: only workload.{', '.join(SHARED)} can be the same for several"
            raise ConfigError(key, value, f"{allowed}. A workload of your own is a file of conf/workload/")


@contextmanager
def _aside() -> Iterator[None]:
    """While Hydra does not know that it is at a job already."""
    instance = GlobalHydra.instance()
    outer = instance.hydra
    instance.clear()
    try:
        yield
    finally:
        instance.hydra = outer


def _composed(folder: Path, kept: Sequence[str], name: str) -> dict[str, Any]:
    try:
        with _aside(), initialize_config_dir(str(folder), version_base="1.3"):
            config = compose("config", overrides=[*kept, f"{GROUP}={name}"])
    except MissingConfigException as error:
        known = ", ".join(sorted(error.options or ()))
        raise ConfigError(KEY, name, f"one of {known}") from None
    except HydraException as error:
        raise ConfigError(KEY, name, f"the name of a file of conf/workload/ ({' '.join(str(error).split())})") from None
    whole: Any = OmegaConf.to_container(config[GROUP], resolve=True)
    return dict(whole)
