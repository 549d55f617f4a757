"""``experiment=ddtree_sweep`` and ``experiment=smoke``: plan, measure, store, report."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.cells import Todo, run_cells
from experiments.engines import engine_of
from experiments.estimate import estimate, server_starts
from experiments.interrupt import Interrupted, interruptible
from experiments.listing import print_plan
from experiments.models import resolve
from experiments.plan import Facts, Plan, make_plan
from experiments.progress import Progress, duration, say, say_briefly, warn
from experiments.report import summarise
from experiments.settings import Settings, load_settings
from experiments.shapes import drafter_of
from experiments.store import RunFolder
from experiments.workload import choose, prompts_hash, read_prompts
from runners.base import ModelFiles, Prompt, Runner, ServerSpec
from runners.machine import machine_facts


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """A sweep, from its composed configuration to the summary that is printed last.

    Nothing is started, and nothing of an earlier run is touched, before everything that can be checked has been.

    Raises:
        ConfigError: any setting, model, prompt or folder that cannot be used.
        EngineFailure: the engine did not start.
    """
    settings = load_settings(config, run_id)
    prompts, warmup = _prompts(settings)
    files, facts = _facts(settings, prompts)
    plan = make_plan(settings, facts)
    folder = RunFolder(Path(settings.output_dir) / settings.name / settings.run_id)
    seconds = [estimate(planned.cell, settings.model, settings.engine.cost) for planned in plan.cells]
    if settings.dry_run:
        print_plan(plan, seconds, folder.ids(), settings.engine.cost.start_s, facts.engine.server_per_arm)
        return {**_summary(folder), "planned": len(plan.cells), "dropped": len(plan.dropped)}
    folder.check_writable()
    skip = {"failed"} if settings.retry_failed else set()
    todo = [
        Todo(planned, cost.seconds)
        for planned, cost in zip(plan.cells, seconds, strict=True)
        if folder.status(planned.cell) in {None, *skip}
    ]
    runner = _runner(settings, facts, files, todo, prompts, warmup)
    signal = _measure(
        {**config, "run_id": settings.run_id}, settings, plan, _with_starts(todo, settings), folder, runner
    )
    if signal is not None:
        say(f"{signal}: the running cell is lost; the same command with run_id={settings.run_id} does the rest")
    return _finish(settings, folder, signal)


def _prompts(settings: Settings) -> tuple[list[Prompt], list[Prompt]]:
    """The measured prompts, and the warm-up prompts, none of which is measured."""
    path = settings.workload.path
    assert path is not None
    prompts = choose(read_prompts("workload.path", path), settings.workload)
    measured = {prompt.turns[0] for prompt in prompts}
    warmup = read_prompts("workload.warmup_path", settings.workload.warmup_path)
    unmeasured = [prompt for prompt in warmup if prompt.turns[0] not in measured]
    if not unmeasured:
        raise ConfigError("workload.warmup_path", settings.workload.warmup_path, "a prompt that is not measured too")
    further = sum(len(prompt.turns) > 1 for prompt in prompts)
    if further:
        say(f"{further} prompts have further turns; only the first is asked")
    return prompts, unmeasured


def _refusals(settings: Settings) -> dict[str, str]:
    """By strategy: why the engine cannot run it with this model on this host."""
    model = settings.model
    general = engine_of(settings.engine.name).refuse_all(settings)
    refusals = {}
    for strategy in settings.sweep.strategy:
        role, drafter = drafter_of(strategy, model)
        missing = f"model {model.name} has no {role} drafter" if role and drafter is None else None
        reason = general or missing
        if reason is not None:
            refusals[strategy] = reason
    return refusals


def _facts(settings: Settings, prompts: list[Prompt]) -> tuple[ModelFiles | None, Facts]:
    """What the plan takes from outside, and the model's files where anything can be run."""
    model, refusals = settings.model, _refusals(settings)
    runnable = [strategy for strategy in settings.sweep.strategy if strategy not in refusals]
    roles = ["target", *sorted({drafter_of(strategy, model)[0] for strategy in runnable} - {""})]
    files = None
    revisions = {role: part.revision for role in ("target", "dflash", "eagle") if (part := getattr(model, role))}
    if runnable:
        try:
            files, found = resolve(model, roles)
            revisions |= found
        except ConfigError as error:
            if not settings.dry_run:
                raise
            warn(f"{error}; a real run would stop here")
    return files, Facts(
        engine_version=_engine_version(settings) if runnable else "unknown",
        revisions=revisions,
        prompts_hash=prompts_hash(prompts),
        prompts=len(prompts),
        unsupported=refusals,
        engine=engine_of(settings.engine.name),
    )


def _engine_version(settings: Settings) -> str:
    try:
        return engine_of(settings.engine.name).version(settings)
    except ConfigError as error:
        if not settings.dry_run:
            raise
        warn(f"{error}; a real run would stop here")
        return "unknown"


def _runner(
    settings: Settings,
    facts: Facts,
    files: ModelFiles | None,
    todo: list[Todo],
    prompts: list[Prompt],
    warmup: list[Prompt],
) -> Runner | None:
    """What will drive the engine, not yet started; None where there is nothing to measure."""
    arms = [item.planned.cell.arm for item in todo if item.planned.unsupported is None]
    if not arms or files is None:
        return None
    engine, model, load = settings.engine, settings.model, settings.load
    spec = ServerSpec(
        model=files,
        device=engine.device,
        dtype=engine.dtype,
        threads=engine.threads,
        template=model.template,
        thinking=model.thinking,
        context_length=arms[0].flags.get("max_model_len", model.context_length),
        ignore_eos=load.ignore_eos,
        prompts=tuple(prompts),
        warmup=tuple(warmup),
        max_new_tokens=load.max_new_tokens,
        timeout_s=engine.timeout_s,
        server=facts.engine.options(settings, arms),
    )
    return facts.engine.runner(spec)


def _with_starts(todo: list[Todo], settings: Settings) -> list[Todo]:
    """Estimates with the start of a server, where an arm has one of its own, in the cell that waits for it."""
    if not engine_of(settings.engine.name).server_per_arm:
        return todo
    measured = [item for item in todo if item.planned.unsupported is None]
    starts = server_starts([item.planned.cell for item in measured], server_per_arm=True)
    waiting = {item.planned.cell.cell_id for item, starts_one in zip(measured, starts, strict=True) if starts_one}
    start_s = settings.engine.cost.start_s
    return [
        replace(item, seconds=item.seconds + start_s) if item.planned.cell.cell_id in waiting else item for item in todo
    ]


def _measure(
    config: dict[str, Any],
    settings: Settings,
    plan: Plan,
    todo: list[Todo],
    folder: RunFolder,
    runner: Runner | None,
) -> str | None:
    """Starts the engine, makes the folder and runs the cells. Returns the signal that ended it early, if one did.

    One runner serves the whole plan; where an arm has a server of its own, the runner starts one after another.
    """
    with interruptible():
        try:
            environment = None
            if runner is not None:
                say_briefly(f"starting the {settings.engine.name} engine with {settings.model.name}")
                environment = {"command": _command(), **machine_facts(), **runner.start()}
                if environment.get("engine_warning"):
                    warn(environment["engine_warning"])
            elif not folder.ids():
                environment = {"command": _command(), **machine_facts()}
            folder.open(config, environment, plan.dropped, plan.cells)
            _announce(plan, todo, folder)
            progress = Progress([item.seconds for item in todo if item.planned.unsupported is None])
            run_cells(todo, runner, folder, settings.load.warmup_tokens, progress)
        except Interrupted as signal:
            return signal.name
        finally:
            if runner is not None:
                runner.stop()
            folder.close()
    return None


def _command() -> str:
    """The command line of this process, for the report's recipe."""
    return shlex.join(["python", "-m", "ddbench", *sys.argv[1:]])


def _announce(plan: Plan, todo: list[Todo], folder: RunFolder) -> None:
    say(f"run folder {folder.path}")
    reasons = {point.reason.partition(":")[0] for point in plan.dropped}
    if plan.dropped:
        some = "; ".join(sorted(reasons)[:3]) + ("; ..." if len(reasons) > 3 else "")
        say(f"{len(plan.dropped)} grid points cannot be and are dropped ({some}), see dropped.json")
    done = len(plan.cells) - len(todo)
    if done:
        say(f"{done} of {len(plan.cells)} cells are done already")
    others = folder.ids() - {planned.cell.cell_id for planned in plan.cells}
    if others:
        say(f"{len(others)} cells of an earlier plan of this run are kept: the report shows both")
    for reason, count in Counter(item.planned.unsupported for item in todo).items():
        if reason is not None:
            warn(f"{count} cells unsupported: {reason}")
    measured = [item.seconds for item in todo if item.planned.unsupported is None]
    say(f"{len(measured)} cells to measure, estimated at {duration(sum(measured))}")


def _finish(settings: Settings, folder: RunFolder, signal: str | None) -> dict[str, Any]:
    """The report of what is there, and the summary. A report that fails takes nothing from the stored cells."""
    extra: dict[str, Any] = {} if signal is None else {"interrupted": signal}
    if not folder.ids():
        return {**_summary(folder), **extra}
    try:
        summary = summarise(folder, settings.report, settings.tracking)
    except Exception as error:  # noqa: BLE001  the cells are stored: say where they are, and how to try again
        say(traceback.format_exc().rstrip())
        warn(f"the cells are stored, the report failed; try experiment=report run={folder.path}")
        return {**_summary(folder), **extra, "error": f"report: {type(error).__name__}: {error}"}
    for status in ("failed", "suspect"):
        if summary["cells"][status]:
            warn(f"{summary['cells'][status]} cells {status}: see the report for the reasons")
    return {**summary, **extra}


def _summary(folder: RunFolder) -> dict[str, Any]:
    return {"run": str(folder.path), "report": None, "results": None, "cells": folder.counts()}
