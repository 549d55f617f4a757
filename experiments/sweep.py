"""``experiment=ddtree_sweep`` and ``experiment=smoke``: plan, measure, store, report."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddbench.errors import ConfigError
from ddbench.redaction import redacted
from experiments import hosts
from experiments.adaptive.arms import check_setup, cost_of
from experiments.asked import Asked, ChangingRunner, asked_of, plan_of, recorded
from experiments.cells import DiskFull, Rules, Todo, run_cells
from experiments.changes import differing_keys
from experiments.command import command_line
from experiments.diagnosis import DISK_FULL
from experiments.drafters import DrafterRunner, kinds, resolve_each, variants
from experiments.engines import engine_of
from experiments.engines.published import published_options
from experiments.estimate import estimate, server_starts
from experiments.hosts import claimed
from experiments.interrupt import Interrupted, Stop, interruptible
from experiments.listing import announce, print_plan
from experiments.models import pickled, resolve
from experiments.outage import HostAway, Outage
from experiments.plan import Facts, Plan
from experiments.progress import Progress, say, say_briefly, warn
from experiments.report import summarise, tracker
from experiments.roofline import UNKNOWN, roofline
from experiments.settings import Settings, load_settings
from experiments.shapes import drafter_of
from experiments.starting import answered, started
from experiments.store import RunFolder
from experiments.template import template_hash
from experiments.turns import Sharing, placed
from runners.base import EngineFailure, ModelFiles, Runner, ServerSpec
from runners.devices import gpus_of
from runners.machine import machine_facts

if TYPE_CHECKING:
    from reports.tracking import Recorder


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """A sweep, from its composed configuration to the summary that is printed last.

    Nothing is started, and nothing of an earlier run is touched, before everything that can be checked has been.

    Raises:
        ConfigError: any setting, model, prompt or folder that cannot be used.
    """
    return run_part(config, run_id, None)


def run_part(config: Mapping[str, Any], run_id: str, whole: str | None) -> dict[str, Any]:
    """:func:`run`, of one of several plans of a command; ``whole``: the ``run_id`` that its user goes on with.

    None: the plan is the whole command. Else a folder may have cells of the command's other plans, of other strategies.
    """
    settings = load_settings(config, run_id)
    with claimed(settings.host, settings.dry_run) as host:
        engine = settings.engine
        each = int(engine.flags.get("tensor_parallel") or 1)
        return _run(config, replace(settings, host=placed(host, engine.device, settings.worker, each)), whole)


def _run(config: Mapping[str, Any], settings: Settings, whole: str | None) -> dict[str, Any]:
    """The same on one host."""
    faults = settings.faults
    path = Path(settings.output_dir) / settings.name / settings.run_id
    folder = RunFolder(path, faults.heartbeat_s, faults.stale_s)
    files, facts = answered(lambda: _facts(settings), faults, _outage(settings))
    asked = asked_of(settings, facts, folder)
    plan = plan_of(asked, facts)
    if settings.dry_run:
        seconds = [estimate(planned.cell, settings.model, settings.engine.cost) for planned in plan.cells]
        start_s, restart = settings.engine.cost.start_s, settings.load.restart
        print_plan(plan, seconds, folder.ids(), start_s, facts.engine.server_per_arm, restart)
        return {**_summary(folder), "planned": len(plan.cells), "dropped": len(plan.dropped)}
    folder.check_writable()
    if settings.load.ignore_eos:
        warn(
            "load.ignore_eos=true: answers run on past their end. Times of a step are good, acceptance and text are not"
        )
    todo = _todo(settings, plan, folder)
    runner = _runner(settings, facts, files, todo, asked)
    with tracker(settings.tracking, folder) as recorder:
        kept = {**config, "run_id": settings.run_id, "worker": 0}
        cells = partial(_cells, kept, settings, facts, asked, folder, runner, recorder, whole is not None)
        ended = _measure(cells, folder, runner)
        if ended.why is not None:
            say(f"{ended.why}; the same command with run_id={whole or settings.run_id} does the rest")
        return _finish(settings, folder, ended, recorder)


@dataclass(frozen=True)
class Ended:
    """How the measuring ended early, all None where it did not.

    ``signal``: the one that asked for it. ``why``: in words. ``error``: what broke. ``now``: no report is wanted.
    ``report``: one is, though something broke.
    """

    signal: str | None = None
    why: str | None = None
    error: str | None = None
    now: bool = False
    report: bool = False


def _todo(settings: Settings, plan: Plan, folder: RunFolder) -> list[Todo]:
    """The cells that have no final status, with what they will take."""
    skip = {"failed"} if settings.retry_failed else set()
    found = [(planned, folder.stamp(planned.cell), folder.status(planned.cell)) for planned in plan.cells]
    return [
        Todo(planned, estimate(planned.cell, settings.model, settings.engine.cost).seconds, seen)
        for planned, seen, status in found
        if status in {None, *skip}
    ]


def _refusals(settings: Settings) -> dict[str, str]:
    """By strategy: why the engine cannot run it with this model on this host."""
    model = settings.model
    general = engine_of(settings.engine.name).refuse_all(settings)
    refusals = {}
    for strategy in settings.sweep.strategy:
        role, drafter = drafter_of(strategy, model)
        missing = f"model {model.name} has no {role} drafter" if role and drafter is None else None
        unsafe = pickled(drafter.source, drafter.revision) if drafter is not None and general is None else None
        reason = general or missing or unsafe
        if reason is not None:
            refusals[strategy] = reason
    return refusals


def _facts(settings: Settings) -> tuple[ModelFiles | None, Facts]:
    """What the plan takes from outside but for the prompts, and the model's files where anything can be run."""
    several = variants(settings)
    model, refusals = next(iter(several.values()), settings).model, _refusals(settings)
    runnable = [strategy for strategy in settings.sweep.strategy if strategy not in refusals]
    roles = _roles(settings)
    files, drafter_revisions = None, {}
    revisions = {role: part.revision for role in ("target", "dflash", "eagle") if (part := getattr(model, role))}
    if runnable:
        try:
            files, found = resolve(model, roles)
            revisions |= found
            drafter_revisions = resolve_each(settings, roles)[1]
        except ConfigError as error:
            if not settings.dry_run:
                raise
            warn(f"{error}; a real run would stop here")
    return files, Facts(
        engine_version=_engine_version(settings) if runnable else "unknown",
        revisions=revisions,
        prompts_hash="",
        prompts=0,
        unsupported=refusals,
        engine=engine_of(settings.engine.name),
        drafter_revisions=drafter_revisions,
        template_hash=template_hash(model.template, files),
        cost=cost_of(settings),
    )


def _roles(settings: Settings) -> list[str]:
    """The parts of the model that are needed by strategies that can be run."""
    refusals = _refusals(settings)
    runnable = [strategy for strategy in settings.sweep.strategy if strategy not in refusals]
    return ["target", *sorted({drafter_of(strategy, settings.model)[0] for strategy in runnable} - {""})]


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
    asked: list[Asked],
) -> Runner | None:
    """What will drive the engine, not yet started; None where there is nothing to measure."""
    arms = [item.planned.cell.arm for item in todo if item.planned.unsupported is None]
    if not arms or files is None:
        return None
    engine, model, load = settings.engine, settings.model, settings.load
    recording = [each.settings.workload.turns for each in asked if not each.talk.whole]
    if engine.url is not None and recording and arms[0].strategy != "autoregressive":
        allowed = "first, or workload.contexts=<file>: a running server that speculates cannot record the answers"
        raise ConfigError("workload.turns", recording[0], allowed)
    spec = ServerSpec(
        model=files,
        device=engine.device,
        dtype=engine.dtype,
        threads=engine.threads,
        template=model.template,
        thinking=model.thinking,
        context_length=arms[0].flags.get("max_model_len", model.context_length),
        ignore_eos=load.ignore_eos,
        prompts=asked[0].first_requests,
        warmup=asked[0].workload.warmup,
        max_new_tokens=load.max_new_tokens,
        timeout_s=engine.timeout_s,
        server=facts.engine.options(settings, arms),
        host=settings.host,
        gaps=load.gaps,
        stall_s=engine.stall_timeout_s,
        start_s=engine.start_timeout_s,
        telemetry=settings.telemetry,
        cost=facts.cost,
        published=published_options(settings),
    )
    if not settings.drafters:
        return facts.engine.runner(spec)
    each, _ = resolve_each(settings, _roles(settings))
    runners = {source: facts.engine.runner(replace(spec, model=of_drafter)) for source, of_drafter in each.items()}
    return DrafterRunner(runners, kinds(settings))


def _with_starts(todo: list[Todo], settings: Settings) -> list[Todo]:
    """Estimates with the start of the engine, in the cells that wait for one."""
    per_arm = engine_of(settings.engine.name).server_per_arm
    measured = [item for item in todo if item.planned.unsupported is None]
    starts = server_starts([item.planned.cell for item in measured], per_arm, settings.load.restart)
    if measured and not per_arm:
        starts[0] = False  # that one is over before the first cell
    waiting = {item.planned.cell.cell_id for item, starts_one in zip(measured, starts, strict=True) if starts_one}
    start_s = settings.engine.cost.start_s
    return [
        replace(item, seconds=item.seconds + start_s) if item.planned.cell.cell_id in waiting else item for item in todo
    ]


def _measure(cells: Callable[[Stop], Ended], folder: RunFolder, runner: Runner | None) -> Ended:
    """Measures by ``cells``, and stops the engine whatever happens. Returns how it ended early, if it did."""
    ended: Ended | None = None
    with interruptible() as stop:
        try:
            try:
                ended = cells(stop)
            finally:
                with stop.ending():
                    _put_away(runner, folder)
        except Interrupted as signal:
            _put_away(runner, folder)  # nothing is left to do, but where the signal came before that or within
            lost = "the running cell is lost" if ended is None else "the engine was stopped"
            return Ended(signal.name, f"{signal.name}: {lost}", now=stop.asked is not None)
    if stop.asked is None:
        return ended
    return replace(ended, signal=stop.asked, why=ended.why or f"{stop.asked}: {stop.awaited.format('was')}")


def _put_away(runner: Runner | None, folder: RunFolder) -> None:
    """Stops the engine and gives up what is claimed. Safe to call twice."""
    try:
        if runner is not None:
            runner.stop()
    finally:
        folder.close()


def _cells(
    config: dict[str, Any],
    settings: Settings,
    facts: Facts,
    asked: list[Asked],
    folder: RunFolder,
    runner: Runner | None,
    recorder: Recorder,
    part: bool,
    stop: Stop,
) -> Ended:
    """Starts the engine, makes the folder and runs the cells. Returns what broke it off, if something did.

    One runner serves the whole plan; where an arm has a server of its own, the runner starts one after another. Answers
    to earlier turns that are not recorded yet are recorded first, since the cells are named by them.
    """
    try:
        environment = None
        if runner is not None:
            recorder.start()  # beside the engine, so that it takes no time of its own
            say_briefly(f"starting the {settings.engine.name} engine with {settings.model.name}")
            with asked[0].named():  # the one that an engine starts with
                environment = _environment(settings, asked, started(runner, settings.faults, _outage(settings)))
            for warning in (environment.get("engine_warning"), *environment["host_warnings"]):
                if warning:
                    warn(warning)
            if facts.cost is not None:
                check_setup(facts.cost, settings, facts.engine_version, environment)
            asked, told = recorded(asked, runner, facts, folder)
            environment |= told
            runner = runner if len(asked) == 1 else ChangingRunner(runner, asked, facts)
        elif not folder.ids():
            environment = _environment(settings, asked, None)
        plan = plan_of(asked, facts)
        todo = _with_starts(_todo(settings, plan, folder), settings)
        for each in asked:
            each.talk.keep()
        before = folder.config()
        folder.open(config, environment, plan.dropped, plan.cells)
        announce(plan, todo, folder, differing_keys(before, redacted(config)), part)
        left = [item.seconds for item in todo if item.planned.unsupported is None]
        progress = Progress(left, several=len(asked) > 1)
        recorder.ready()
        bounds = UNKNOWN if runner is None else roofline(settings, facts.revisions.get("target"))
        run_cells(todo, runner, folder, _rules(settings, facts), progress, recorder.cell, bounds, stop)
    except DiskFull as error:
        return _broken_off(str(error))
    except HostAway as error:
        return replace(_broken_off(str(error)), report=True)
    except EngineFailure as error:
        return _broken_off(f"the {settings.engine.name} engine: {error}")
    except OSError as error:
        if not DISK_FULL.search(str(error)):
            raise
        return _broken_off(f"{folder.path}: {error.strerror}")
    return Ended()


def _broken_off(error: str) -> Ended:
    return Ended(why=f"error: {error}", error=error)


def _rules(settings: Settings, facts: Facts) -> Rules:
    sharing = Sharing(facts.engine.server_per_arm, settings.faults.wait)
    return Rules(settings.load.warmup_tokens, settings.load.restart, settings.faults, sharing, _outage(settings))


def _outage(settings: Settings) -> Outage:
    return Outage(settings.host, settings.faults.host_wait_s)


def _environment(settings: Settings, asked: list[Asked], engine: dict[str, Any] | None) -> dict[str, Any]:
    """``environment.json``: the command, when it began to measure, the machine, the engine, the prompts' origin.

    ``engine`` None: none was started, and its host is not asked. Which GPUs a running server has is not known. Of
    several workloads the origins stand under ``workloads``, by name.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    trusted = settings.model.trust_remote_code
    told = {"command": command_line(), "started": started, "trust_remote_code": trusted, **machine_facts()}
    if engine is not None:
        chosen = settings.engine
        each = int(chosen.flags.get("tensor_parallel") or 1)
        used = None if chosen.url is not None else gpus_of(chosen.device, each, settings.host)
        told |= hosts.environment(settings.host, used) | engine
    if len(asked) == 1:
        return {**told, "workload": asked[0].origin}
    return {**told, "workloads": {each.label: each.origin for each in asked}}


def _finish(settings: Settings, folder: RunFolder, ended: Ended, recorder: Recorder) -> dict[str, Any]:
    """The report of what is there, and the summary. A report that fails takes nothing from the stored cells."""
    extra: dict[str, Any] = {"interrupted": ended.signal, "error": ended.error}
    extra = {name: value for name, value in extra.items() if value is not None}
    broken = ended.error is not None and not ended.report
    if not folder.ids() or ended.now or broken or not settings.report.build:
        return {**_summary(folder), **extra}
    try:
        summary = summarise(folder, settings.report, recorder)
    except Exception as error:  # noqa: BLE001  the cells are stored: say where they are, and how to try again
        say(traceback.format_exc().rstrip())
        warn(f"the cells are stored, the report failed; try experiment=report run={folder.path}")
        return {**_summary(folder), **extra, "error": f"report: {type(error).__name__}: {error}"}
    return {**summary, **extra}


def _summary(folder: RunFolder) -> dict[str, Any]:
    return {"run": str(folder.path), "report": None, "results": None, "cells": folder.counts()}
