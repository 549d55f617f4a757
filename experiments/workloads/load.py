"""A workload from its settings: the prompts that are measured, the warm-up, and where it all comes from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from ddbench.errors import ConfigError
from experiments.settings import WorkloadSettings
from experiments.workloads import hub, wheels
from experiments.workloads.choose import of_categories, spread
from experiments.workloads.records import Row, asset_path, file_rows, prompts_of, read_prompts
from runners.base import Prompt


@dataclass(frozen=True)
class Workload:
    """``prompts`` have all the turns that are asked, no answers; ``origin`` is what a run stores of their source."""

    prompts: tuple[Prompt, ...]
    warmup: tuple[Prompt, ...]
    origin: dict[str, Any]
    key: str = "workload.path"  # the setting that names the source
    source: str = ""
    warmup_path: str = ""

    def refusal(self, error: ConfigError) -> ConfigError:
        """What an engine says of one prompt (``workload=<id>``), named by the setting that the prompt comes from."""
        name = str(error.value).partition(" turn ")[0]
        warming = all(prompt.id != name for prompt in self.prompts) and any(p.id == name for p in self.warmup)
        key, source = ("workload.warmup_path", self.warmup_path) if warming else (self.key, self.source)
        return ConfigError(key, source, f"prompt {error.value!r} of {error.allowed}")


def load_workload(settings: WorkloadSettings) -> Workload:
    """The measured prompts, and the warm-up prompts, none of which is measured.

    Raises:
        ConfigError: a source that cannot be had or read, a category that it lacks, rows that are placeholders.
    """
    if settings.contexts is not None and not asset_path(settings.contexts).is_file():
        raise ConfigError("workload.contexts", settings.contexts, "a file contexts/<key>.json of a run, or null")
    key, source, rows, origin = _source(settings)
    wanted = of_categories(prompts_of(key, source, rows, settings.rows, settings.name), settings.categories)
    _refuse_placeholders(settings, key, source, wanted)
    prompts = spread(wanted, settings.max_prompts)
    if settings.turns == "first":
        prompts = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
    measured = {prompt.turns[0] for prompt in prompts}
    warmup = read_prompts("workload.warmup_path", settings.warmup_path, name="warmup")
    unmeasured = tuple(prompt for prompt in warmup if prompt.turns[0] not in measured)
    if not unmeasured:
        raise ConfigError("workload.warmup_path", settings.warmup_path, "a prompt that is not measured too")
    origin |= {"name": settings.name, "licence": settings.licence, "prompts": len(prompts)}
    origin |= {"turns": sum(len(prompt.turns) for prompt in prompts)}
    return Workload(tuple(prompts), unmeasured, origin, key, source, settings.warmup_path)


def _source(settings: WorkloadSettings) -> tuple[str, str, list[Row], dict[str, Any]]:
    """The key that names the source, the source, its rows and what is stored of it. A path comes before a wheel, that
    before a dataset."""
    if settings.path is not None:
        rows = list(file_rows("workload.path", settings.path, settings.name))
        digest = hashlib.sha256(asset_path(settings.path).read_bytes()).hexdigest()[:16]
        return "workload.path", settings.path, rows, {"source": settings.path, "revision": f"sha256:{digest}"}
    if settings.wheel is not None:
        path, version = wheels.locate(settings.wheel)
        rows = list(file_rows(wheels.KEY, str(path), settings.name))
        source = f"{settings.wheel.package}/{settings.wheel.file}"
        return wheels.KEY, source, rows, {"source": source, "revision": version}
    assert settings.dataset is not None
    loaded = [hub.load(settings, *each) for each in zip(settings.dataset, settings.revisions, strict=True)]
    found = [each.revision for each in loaded]
    origin = {"source": list(settings.dataset), "revision": found, "config": settings.config, "split": settings.split}
    return hub.KEY, ", ".join(settings.dataset), [row for each in loaded for row in each.rows], origin


def _refuse_placeholders(settings: WorkloadSettings, key: str, source: str, prompts: list[Prompt]) -> None:
    mark = settings.rows.placeholder if settings.rows is not None else None
    if mark is None:
        return
    empty = sum(any(mark in turn for turn in prompt.turns) for prompt in prompts)
    if empty:
        allowed = (
            f"rows with their texts: {empty} of {len(prompts)} hold a placeholder. Prepare them with the set's own "
            "script and name the file, workload.path=<file>, or choose workload.categories that are whole"
        )
        raise ConfigError(key, source, allowed)
