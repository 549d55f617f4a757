"""The workloads of a run: what each of them asks, one plan for all, and the engine that changes from one to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from experiments.contexts import Talk, context_file, first_turns
from experiments.plan import Facts, Plan, make_plan, make_plan_of
from experiments.settings import Settings
from experiments.store import RunFolder
from experiments.workloads import Workload, load_workload
from runners.base import CellJob, CellOutcome, Prompt, Runner


@dataclass(frozen=True)
class Asked:
    """One workload of a run. ``settings`` are those of a run of it alone, whose cells are its cells here."""

    settings: Settings
    workload: Workload
    talk: Talk

    @property
    def label(self) -> str:
        """The ``dataset`` of its points."""
        return self.settings.workload.name

    @property
    def origin(self) -> dict[str, Any]:
        """Where its prompts come from, as ``environment.json`` has it."""
        return {**self.workload.origin, "contexts": self.talk.file and self.talk.file.path.name}

    @property
    def first_requests(self) -> tuple[Prompt, ...]:
        """All that is asked, or the first turns while answers to them are still to be recorded."""
        return self.talk.requests if self.talk.whole else first_turns(self.talk.prompts)

    def arm(self, facts: Facts) -> Arm:
        """Any of its arms."""
        return make_plan(self.settings, self.talk.told(facts)).cells[0].cell.arm

    @contextmanager
    def named(self) -> Iterator[None]:
        """What an engine refuses of a prompt is named by the setting that the prompt comes from."""
        try:
            yield
        except ConfigError as error:
            raise self.workload.refusal(error) if error.key == "workload" else error from None


def each_alone(settings: Settings) -> list[Settings]:
    """The settings of a run of each workload alone; those given where there is one."""
    if settings.workloads is None:
        return [settings]
    return [replace(settings, workload=each, workloads=None) for each in settings.workloads.values()]


def asked_of(settings: Settings, facts: Facts, folder: RunFolder) -> list[Asked]:
    """What each workload asks, with the answers to earlier turns as far as they are recorded.

    Raises:
        ConfigError: a workload that cannot be had, or contexts that are not its own.
    """
    loaded = [(each, load_workload(each.workload)) for each in each_alone(settings)]
    asked = [Asked(each, workload, Talk(workload.prompts, {})) for each, workload in loaded]
    return [_with_contexts(each, facts, folder) for each in asked]


def _with_contexts(asked: Asked, facts: Facts, folder: RunFolder) -> Asked:
    talk, settings = asked.talk, asked.settings
    if not talk.several:
        return asked
    file = context_file(folder.path, talk.prompts, settings, asked.arm(facts))
    given = settings.workload.contexts
    answers = file.read() if given is None else file.given(given)
    return replace(asked, talk=replace(talk, file=file, answers=answers))


def plan_of(asked: Sequence[Asked], facts: Facts) -> Plan:
    """The plan of all of them; see :func:`experiments.plan.make_plan_of`."""
    return make_plan_of([(each.settings, each.talk.told(facts)) for each in asked])


def recorded(
    asked: Sequence[Asked], runner: Runner, facts: Facts, folder: RunFolder
) -> tuple[list[Asked], dict[str, Any]]:
    """With all answers to earlier turns, from the started engine, which has then seen every prompt; facts of those.

    Raises:
        ConfigError: a prompt that cannot be used.
        EngineFailure: the engine is gone.
    """
    whole, told = [], {}
    for each in asked:
        with each.named():
            if len(asked) > 1:
                told[each.label] = runner.ask(each.first_requests, each.workload.warmup)
            if not each.talk.whole:
                with folder.alone("contexts"):
                    each = replace(each, talk=each.talk.recorded(runner, each.settings, each.arm(facts)))
                told[each.label] = runner.ask(each.talk.requests)
        whole.append(each)
    if len(asked) == 1:
        return whole, next(iter(told.values()), {})
    return whole, {"prompt_tokens": {label: found.get("prompt_tokens") for label, found in told.items()}}


class ChangingRunner:
    """A started engine that is asked the prompts of each cell's own workload; see :class:`runners.base.Runner`."""

    def __init__(self, runner: Runner, asked: Sequence[Asked], facts: Facts) -> None:
        self._runner = runner
        self._asked = {(each.label, each.talk.told(facts).prompts_hash): each for each in asked}
        self._now: tuple[str, str] | None = None  # which of them the engine has

    def start(self) -> dict[str, Any]:
        return self._runner.start()

    def run_cell(self, job: CellJob, on_progress: Callable[[int, int], None]) -> CellOutcome:
        wanted = job.cell.workload, job.cell.prompts_hash
        if wanted != self._now:
            each = self._asked[wanted]
            self.ask(each.talk.requests, each.workload.warmup)
            self._now = wanted
        return self._runner.run_cell(job, on_progress)

    def ask(self, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...] | None = None) -> dict[str, Any]:
        self._now = None
        return self._runner.ask(prompts, warmup)

    def texts(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        return self._runner.texts(token_ids)

    def stop(self) -> None:
        self._runner.stop()
