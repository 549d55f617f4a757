"""``experiment=record``: decode the prompts, draft from every anchor, store a trace a request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from ddbench.records import FINAL_STATUSES
from ddbench.replay.trace import SCHEMA, Key, save_trace
from experiments.interrupt import Interrupted, interruptible
from experiments.progress import counted, duration, say, warn
from experiments.record.folder import RecordFolder, Recording, trace_name
from experiments.record.prompts import Source, gather
from experiments.record.recorders import Recorder, ReferenceRecorder, requests_of
from experiments.record.settings import RecordSettings, load
from experiments.settings import Settings
from experiments.store import RunFolder
from runners.base import EngineFailure
from runners.machine import machine_facts
from runners.prompts import Tokenized

Item = tuple[str, Tokenized, int, float]  # name of the trace, prompt, repeat, temperature


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Records what is not recorded yet; the summary counts ``traces``, those of this run and those found.

    A signal at any moment leaves what is stored; one while the engine stops lets that end. Both are in the summary.

    Raises:
        ConfigError: any setting, model, prompt or folder that cannot be used.
    """
    settings, asked = load(config, run_id)
    if settings.engine.name != "reference":  # the server captures graphs for, and admits, what is recorded at a time
        settings = replace(settings, sweep=replace(settings.sweep, batch_size=(asked.batch_size,)))
    folder = RecordFolder(Path(settings.output_dir) / settings.name / settings.run_id)
    RunFolder(folder.path).check_writable()
    again = f"the same command with run_id={settings.run_id} does the rest"
    engine: Recorder | None = None
    signal, error = None, None
    with interruptible("the recording ends") as stop:
        try:
            try:
                source = gather(settings, folder.path)
                nodes = max(asked.nodes, *settings.sweep.nodes)
                engine = recorder_for(source, nodes)
                error = _record(config, settings, asked, folder, source, engine, nodes)
            finally:
                with stop.ending():
                    _stop(engine)
        except Interrupted as broken_off:
            _stop(engine)  # nothing is left to do, but where the signal came before that or within
            signal = broken_off.name
    if signal is not None:
        say(f"{signal}: {again}")
    elif stop.asked is not None:
        signal = stop.asked
        say(f"{signal}: {stop.awaited.format('was')}; {again}")
    return {
        "run": str(folder.path),
        "report": None,
        "results": None,
        "cells": dict.fromkeys(FINAL_STATUSES, 0),
        "traces": folder.whole(),
        **({} if error is None else {"error": f"{error}; {again}"}),
        **({} if signal is None else {"interrupted": signal}),
    }


def _stop(engine: Recorder | None) -> None:
    if engine is not None:
        engine.stop()


def _record(
    config: Mapping[str, Any],
    settings: Settings,
    asked: RecordSettings,
    folder: RecordFolder,
    source: Source,
    engine: Recorder,
    nodes: int,
) -> str | None:
    """Opens the folder and records into it what is missing. Returns what the engine broke off with, if it did."""
    items = _items(settings, engine)
    recording = _recording(settings, source, engine, items, nodes)
    _check_room(engine, items, settings.load.max_new_tokens)
    environment = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        **machine_facts(),
        **engine.facts(),
        "workload": source.origin,
    }
    folder.open(recording, {**config, "run_id": settings.run_id}, environment)
    missing = folder.missing(recording)
    todo = [item for item in items if item[0] in missing]
    say(f"recording {counted(len(todo), 'request')} of {len(items)} into {folder.path}, {recording.nodes} candidates")
    try:
        _store(settings, asked, engine, folder, recording, todo)
    except EngineFailure as failure:
        return str(failure)
    return None


def recorder_for(source: Source, nodes: int) -> Recorder:
    """The engine of a recording of ``nodes`` candidates a position. Raises ConfigError."""
    if source.arm is None:
        return ReferenceRecorder(source.spec)
    from experiments.record.sglang import SglangRecorder

    return SglangRecorder(source.spec, source.arm, nodes)


def _items(settings: Settings, engine: Recorder) -> list[Item]:
    """Everything that is asked, by temperature, then by repeat, then in the order of the prompts."""
    return [
        (trace_name(item.prompt.id, item.prompt.turn, repeat, temperature), item, repeat, temperature)
        for temperature, repeat, item in product(
            settings.sweep.temperature, range(settings.load.repeats), engine.prompts
        )
    ]


def _recording(settings: Settings, source: Source, engine: Recorder, items: Sequence[Item], nodes: int) -> Recording:
    facts = source.facts
    if nodes > engine.most_candidates:
        say(f"{engine.most_candidates} candidates of a position are kept, not {nodes}: this engine has no more")
    return Recording(
        schema=SCHEMA,
        facts={
            name: getattr(facts, name)
            for name in ("engine_version", "revisions", "prompts_hash", "prompts", "template_hash")
        },
        made={
            "build": engine.build,
            "gpu": engine.gpu,
            "model": asdict(settings.model),
            "engine": {name: getattr(settings.engine, name) for name in ("device", "dtype", "flags")},
            "load": {name: getattr(settings.load, name) for name in ("max_new_tokens", "top_p", "top_k", "ignore_eos")},
            "seed": settings.seed,
        },
        temperatures=settings.sweep.temperature,
        nodes=min(nodes, engine.most_candidates),
        depth=engine.depth,
        traces=tuple(
            tuple(name for name, *_, temperature in items if temperature == each) for each in settings.sweep.temperature
        ),
    )


def _check_room(engine: Recorder, items: Sequence[Item], new_tokens: int) -> None:
    """Raises ConfigError for a prompt that leaves no room for what its last round drafts."""
    behind = engine.depth - 1
    for _, item, *_ in items:
        needed = len(item.token_ids) + new_tokens + behind
        if needed > engine.most_tokens:
            room = f"within the context of {engine.most_tokens}, not {needed}"
            raise ConfigError("workload", item.prompt.id, f"prompt, answer and {behind} tokens more {room}")


def _store(
    settings: Settings,
    asked: RecordSettings,
    engine: Recorder,
    folder: RecordFolder,
    recording: Recording,
    todo: Sequence[Item],
) -> None:
    """Records in groups of a batch, each trace stored at once."""
    clock, done, doubtful = time.perf_counter(), 0, 0
    for group in _groups(todo, asked.batch_size):
        requests = requests_of(settings, engine.stop_ids, group)
        found = engine.record(requests, recording.nodes, asked.batch_size, asked.by)
        for (name, item, repeat, temperature), request, recorded in zip(group, requests, found, strict=True):
            prompt = item.prompt
            key = Key(
                prompt.id,
                prompt.turn,
                prompt.dataset,
                prompt.category,
                repeat,
                request.sampling.seed,
                temperature,
            )
            save_trace(folder.place(name), recorded.trace(key, len(request.token_ids)), recording.setup)
            doubtful += recorded.disagreements or 0
        done += len(group)
        say(f"recorded {done} of {len(todo)} requests in {duration(time.perf_counter() - clock)}")
    if doubtful:
        warn(f"{counted(doubtful, 'output token')} would be another in a second pass of the target: near-ties")


def _groups(todo: Sequence[Item], size: int) -> Iterator[list[Item]]:
    """Groups of at most ``size`` requests of one temperature."""
    for temperature in dict.fromkeys(item[3] for item in todo):
        same = [item for item in todo if item[3] == temperature]
        yield from (same[start : start + size] for start in range(0, len(same), size))
