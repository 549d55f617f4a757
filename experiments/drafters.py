"""Several drafters of one target in one run: what each makes of the settings, and the engine that changes drafters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ddbench.errors import ConfigError
from experiments.models import resolve
from experiments.settings import Settings
from experiments.workloads import asset_path
from runners.base import CellJob, CellOutcome, EngineFailure, ModelFiles, Prompt, Runner


def variants(settings: Settings) -> dict[str, Settings]:
    """The settings of each drafter by its name, in the order given; empty where none are named.

    Raises:
        ConfigError: the model has no drafter of that role to put another in the place of.
    """
    part = getattr(settings.model, settings.role)
    if settings.drafters and part is None:
        raise ConfigError("role", settings.role, f"a role of which model {settings.model.name} has a drafter")
    return {
        name: replace(
            settings,
            drafters={},
            model=replace(settings.model, **{settings.role: replace(part, source=source, revision=None)}),
        )
        for name, source in settings.drafters.items()
    }


def resolve_each(settings: Settings, roles: Iterable[str]) -> tuple[dict[str, ModelFiles], dict[str, str | None]]:
    """Files and revision of each drafter, by where it comes from, as an arm names it.

    Raises:
        ConfigError: one that is no checkpoint, named by its own key.
    """
    files: dict[str, ModelFiles] = {}
    revisions: dict[str, str | None] = {}
    for name, each in variants(settings).items():
        source = settings.drafters[name]
        try:
            files[source], found = resolve(each.model, roles)
        except ConfigError as error:
            if error.key != f"model.{settings.role}.source":
                raise
            raise ConfigError(f"drafters.{name}", error.value, error.allowed) from None
        revisions[source] = found.get(settings.role)
    return files, revisions


def kinds(settings: Settings) -> dict[str, str]:
    """By source, what decides whether a drafter fits the target: its config. Of a hub id, which is not read, the id."""
    found = {}
    for source in settings.drafters.values():
        config = asset_path(source) / "config.json"
        found[source] = config.read_text(encoding="utf-8") if config.is_file() else source
    return found


class DrafterRunner:
    """Engines that differ in their drafter alone, one up at a time; see :class:`runners.base.Runner`.

    ``runners`` and ``kinds`` are keyed by the source of the drafter. The first start brings up one engine of each kind,
    so that a drafter that does not fit is refused before anything is measured. Cells without a drafter run on whichever
    engine is up.
    """

    def __init__(self, runners: dict[str, Runner], kinds: dict[str, str]) -> None:
        self._runners = runners
        self._current = next(iter(runners))
        first_of_kind: dict[str, str] = {}
        for source in runners:
            first_of_kind.setdefault(kinds[source], source)
        self._to_try = list(first_of_kind.values())
        self._prompts: tuple[Prompt, ...] | None = None
        self._warmup: tuple[Prompt, ...] | None = None

    def start(self) -> dict[str, Any]:
        if not self._to_try:
            return self._bring_up(self._current)
        facts: dict[str, Any] = {}
        for source in reversed(self._to_try):  # the first one last: it is up when the cells begin
            self.stop()
            try:
                facts = self._bring_up(source)
            except EngineFailure as failure:
                raise EngineFailure(f"drafter {source}: {failure}", failure.kind) from None
        self._to_try = []
        return facts

    def run_cell(self, job: CellJob, on_progress: Callable[[int, int], None]) -> CellOutcome:
        source = job.cell.arm.drafter
        if source in self._runners and source != self._current:
            self.stop()
            self._bring_up(source)
        return self._runners[self._current].run_cell(job, on_progress)

    def ask(self, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...] | None = None) -> dict[str, Any]:
        self._prompts, self._warmup = prompts, self._warmup if warmup is None else warmup
        return self._runners[self._current].ask(prompts, self._warmup)

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        return self._runners[self._current].texts(token_ids)

    def stop(self) -> None:
        self._runners[self._current].stop()

    def _bring_up(self, source: str) -> dict[str, Any]:
        self._current = source
        facts = self._runners[source].start()
        return facts if self._prompts is None else {**facts, **self._runners[source].ask(self._prompts, self._warmup)}
