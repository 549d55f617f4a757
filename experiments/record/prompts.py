"""What a recording needs from outside: model files, prompts with the answers to earlier turns, and the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.contexts import Talk, context_file, first_turns
from experiments.engines import engine_of
from experiments.models import resolve
from experiments.plan import Facts, make_plan
from experiments.settings import Settings
from experiments.template import template_hash
from experiments.workloads import Workload, load_workload
from runners.base import ModelFiles, Prompt, ServerSpec


@dataclass(frozen=True)
class Source:
    """``facts`` and ``spec`` are of the prompts as they are asked, every turn a request."""

    facts: Facts
    spec: ServerSpec
    origin: dict[str, Any]


def gather(settings: Settings, folder: Path) -> Source:
    """Finds everything, and records the answers to earlier turns where prompts have several and none are known.

    Raises:
        ConfigError: any model, prompt or setting that cannot be used.
    """
    workload = load_workload(settings.workload)
    files, revisions = resolve(settings.model, ["target", "dflash"])
    engine = engine_of(settings.engine.name)
    facts = Facts(
        engine_version=engine.version(settings),
        revisions=revisions,
        prompts_hash="",
        prompts=0,
        unsupported={},
        engine=engine,
        template_hash=template_hash(settings.model.template, files),
    )
    talk = _talk(settings, facts, workload, files, folder)
    return Source(talk.told(facts), spec_of(settings, files, talk.requests, workload.warmup), dict(workload.origin))


def spec_of(
    settings: Settings, files: ModelFiles, prompts: tuple[Prompt, ...], warmup: tuple[Prompt, ...]
) -> ServerSpec:
    """The reference engine under the settings of a recording."""
    return ServerSpec(
        model=files,
        device=settings.engine.device,
        dtype=settings.engine.dtype,
        threads=settings.engine.threads,
        template=settings.model.template,
        thinking=settings.model.thinking,
        context_length=settings.model.context_length,
        ignore_eos=settings.load.ignore_eos,
        prompts=prompts,
        warmup=warmup,
        max_new_tokens=settings.load.max_new_tokens,
        timeout_s=settings.engine.timeout_s,
    )


def _talk(settings: Settings, facts: Facts, workload: Workload, files: ModelFiles, folder: Path) -> Talk:
    """What is asked, with the answers to all earlier turns: given, found in the folder, or recorded now."""
    talk = Talk(workload.prompts, {})
    if not talk.several:
        return talk
    plain = replace(settings, sweep=replace(settings.sweep, strategy=("autoregressive",)))
    arm = make_plan(plain, talk.told(facts)).cells[0].cell.arm
    file = context_file(folder, workload.prompts, settings, arm)
    given = settings.workload.contexts
    talk = replace(talk, file=file, answers=file.read() if given is None else file.given(given))
    if talk.whole:
        return talk
    runner = facts.engine.runner(spec_of(settings, files, first_turns(talk.prompts), workload.warmup))
    try:
        runner.start()
        return talk.recorded(runner, settings, arm)
    finally:
        runner.stop()
