"""What a recording needs from outside: model files, prompts with the answers to earlier turns, and the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import Arm
from experiments.contexts import Talk, context_file, first_turns
from experiments.engines import engine_of
from experiments.models import resolve
from experiments.plan import Facts, make_plan
from experiments.settings import Settings, StrategySettings
from experiments.shapes import Shape
from experiments.template import template_hash
from experiments.workloads import Workload, load_workload
from runners.base import ModelFiles, Prompt, ServerSpec

ROOT_ALONE = Shape(width=1, depth=1, nodes=1)  # the narrowest verify pass that there is


@dataclass(frozen=True)
class Source:
    """``facts`` and ``spec`` are of the prompts as they are asked, every turn a request.

    ``arm``: what the server that records is started for; None for the reference engine.
    """

    facts: Facts
    spec: ServerSpec
    origin: dict[str, Any]
    arm: Arm | None = None


def gather(settings: Settings, folder: Path, shape: Shape = ROOT_ALONE) -> Source:
    """Finds everything, and records the answers to earlier turns where prompts have several and none are known.

    ``shape``: of the trees of an engine that is a server.

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
    told = talk.told(facts)
    arm = None if settings.engine.name == "reference" else _arm(settings, told, shape)
    return Source(told, spec_of(settings, facts, arm, files, talk.requests, workload.warmup), {**workload.origin}, arm)


def _arm(settings: Settings, facts: Facts, shape: Shape) -> Arm:
    """The DDTREE arm of an engine that is a server. Raises ConfigError where the engine cannot run it."""
    axes = {"width": (shape.width,), "depth": (shape.depth,), "nodes": (shape.nodes,)}
    strategy = StrategySettings(("ddtree",), force_spine=False, min_log_prob=None)
    one = replace(settings.sweep, strategy=("ddtree",), **axes)
    planned = make_plan(replace(settings, sweep=one, strategy=strategy), facts).cells[0]
    if planned.unsupported is not None:
        raise ConfigError("engine", settings.engine.name, f"one that records ({planned.unsupported})")
    return planned.cell.arm


def spec_of(
    settings: Settings,
    facts: Facts,
    arm: Arm | None,
    files: ModelFiles,
    prompts: tuple[Prompt, ...],
    warmup: tuple[Prompt, ...],
) -> ServerSpec:
    """The engine under the settings of a recording; ``arm`` is what a server is started for."""
    return ServerSpec(
        model=files,
        device=settings.engine.device,
        dtype=settings.engine.dtype,
        threads=settings.engine.threads,
        template=settings.model.template,
        thinking=settings.model.thinking,
        context_length=_context(settings, arm),
        ignore_eos=settings.load.ignore_eos,
        prompts=prompts,
        warmup=warmup,
        max_new_tokens=settings.load.max_new_tokens,
        timeout_s=settings.engine.timeout_s,
        server=None if arm is None else facts.engine.options(settings, [arm]),
        host=None if arm is None else settings.host,
        stall_s=settings.engine.stall_timeout_s,
        start_s=settings.engine.start_timeout_s,
    )


def _context(settings: Settings, arm: Arm | None) -> int:
    """Of a request: the model's, and no more than a server's."""
    own = settings.model.context_length
    return own if arm is None else min(own, int(arm.flags.get("context_length") or own))


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
    served = None if settings.engine.name == "reference" else arm
    spec = spec_of(settings, facts, served, files, first_turns(talk.prompts), workload.warmup)
    runner = facts.engine.runner(spec)
    try:
        runner.start()
        return talk.recorded(runner, settings, arm)
    finally:
        runner.stop()
