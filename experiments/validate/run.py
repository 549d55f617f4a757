"""The verb: what a machine was predicted to do, measured, judged line by line, and written down as evidence."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddbench.errors import Broken, ConfigError
from experiments import sweep
from experiments.hosts import hosts_of, reached
from experiments.progress import say, warn
from experiments.settings import Settings, load_settings, one_workload
from experiments.typed import build
from experiments.validate import dry, measure, stored, sweeps
from experiments.validate.predict import write
from experiments.validate.predictions import COMMITTED, Machine, choose, read_machines
from experiments.validate.record import measured_now, record, table, write_record
from experiments.validate.verdict import Missing, Run, Value, judge, verdict
from experiments.writable import check_place, unwritable
from runners.base import EngineFailure

PARTS = ("host", "tiny", "rounds")
EVIDENCE = "evidence.json"
LEFT_OUT = "left out by validate.parts"
PREFIXES = {  # of the keys that a part measures
    "host": ("host.",),
    "tiny": ("cells.tiny.", "backend.", "lossless_share.", "largest_gap", "acceptance_length.", "program_gib."),
    "rounds": ("cells.rounds.", "weights_gib.", "kv_tokens.", "beyond_plan_gib.", "round_ms.", "round_ratio."),
}


@dataclass(frozen=True)
class ValidateSettings:
    """Group ``validate``; each is described in ``conf/experiment/pro6000_validate.yaml``."""

    machine: str | None
    parts: tuple[str, ...]
    prompts: int | None
    new_tokens: int | None
    predictions: str | None
    output: str | None
    judge: str | None
    note: str | None
    predict: bool
    evidence: str
    evidence_sglang: str

    def __post_init__(self) -> None:
        for name in ("prompts", "new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"validate.{name}", value, "an integer >= 1, or null")
            if value is not None and self.judge is not None:
                raise ConfigError(f"validate.{name}", value, "null with validate.judge: what was measured has its own")
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ConfigError("validate.parts", list(self.parts), f"some of {', '.join(PARTS)}")

    @property
    def file(self) -> Path:
        return COMMITTED if self.predictions is None else Path(self.predictions)


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Measures and judges; the summary has the verdict, and an ``error`` unless that is a pass.

    Raises:
        ConfigError: a setting that cannot be, a machine that is not in the predictions file, or what a sweep refuses:
            where another has measured something before, its evidence is written all the same.
    """
    asked = build(ValidateSettings, config.get("validate") or {}, "validate")
    if config.get("dry_run") and (asked.predict or asked.judge is not None):
        allowed = "false with validate.judge and validate.predict, which measure nothing and write a file"
        raise ConfigError("dry_run", config["dry_run"], allowed)
    if asked.predict:
        if asked.file.exists():
            allowed = "a file that does not exist yet with validate.predict: what was predicted is not written over"
            raise ConfigError("validate.predictions", str(asked.file), allowed)
        write(asked.file, Path(asked.evidence), Path(asked.evidence_sglang))
        return {"predictions": str(asked.file), "cells": {}}
    if asked.judge is not None:
        return _judged(asked, Path(asked.judge))
    plain = {key: value for key, value in config.items() if key != "validate"}
    settings = load_settings(plain, run_id)
    one_workload(settings, "predictions are of one workload")
    if settings.model.name != "tiny":
        raise ConfigError("model", settings.model.name, "tiny: predictions are of ddbench's own pairs alone")
    machines = read_machines(asked.file)  # before a host is asked
    folder = Path(settings.output_dir) / settings.name / settings.run_id
    _check_output(asked, "output_dir", folder)
    facts = _host_facts(settings)
    gpu, number = _gpu(settings, facts)
    machine = _machine(machines, asked, gpu, settings)
    if settings.dry_run:
        tiny = sweeps.tiny(plain, machine.tiny, asked.prompts, asked.new_tokens) if "tiny" in asked.parts else []
        plan = machine.rounds if "rounds" in asked.parts else None
        return dry.printed(plain, folder, tiny, plan, settings.engine.name) | {"machine": machine.name}
    done = _measured(plain, settings, asked, machine, folder, (facts, number))
    of = _run_of(machine, settings.engine.name, asked.prompts, asked.new_tokens)
    now = measured_now(facts.get("driver"), gpu, stored.engines(folder))
    summary = _told(asked, machine, folder, of, done.values, now) | {"cells": dict(done.cells)}
    if done.refused is not None:
        raise done.refused  # after what was measured is written down
    if done.stopped is not None:
        summary.pop("error", None)
        return summary | {"interrupted": done.stopped}
    return summary


def _judged(asked: ValidateSettings, folder: Path) -> dict[str, Any]:
    """A validation that was measured before, as :func:`run` gives its summary."""
    then = stored.read(folder)
    _check_output(asked, "validate.judge", folder)
    gpu, number = _gpu(then.settings, then.facts)
    machine = _machine(read_machines(asked.file), asked, gpu, then.settings)
    of = _run_of(machine, then.settings.engine.name, then.prompts, then.new_tokens)
    then = replace(then, sweeps=tuple(name for name in then.sweeps if name in asked.parts))
    found = stored.values(then, number)
    for part in set(PARTS) - set(asked.parts):
        found = {key: value for key, value in found.items() if not key.startswith(PREFIXES[part])}
        found |= _missing(machine, part, LEFT_OUT)
    summary = _told(asked, machine, folder, of, found, stored.measured_then(then, gpu))
    return summary | {"cells": dict(stored.cells(then))}


def _machine(machines: Mapping[str, Machine], asked: ValidateSettings, gpu: str | None, settings: Settings) -> Machine:
    """Raises ConfigError where nothing was predicted of such a GPU."""
    machine = choose(machines, asked.machine, gpu, settings.engine.name)
    if machine is None:
        seen = f"{settings.engine.name} on {gpu or 'a CPU'}"
        known = "; ".join(f"{name}: {each.what}" for name, each in machines.items())
        raise ConfigError("validate.machine", None, f"a machine that something was predicted for, not {seen} ({known})")
    say(f"{machine.name}: {len(machine.predictions)} predictions for {machine.what}")
    return machine


def _run_of(machine: Machine, engine: str, prompts: int | None, new_tokens: int | None) -> Run:
    """None: as predicted."""
    tiny = machine.tiny
    return Run(engine, prompts or tiny.prompts, new_tokens or tiny.new_tokens, machine.engines)


def _check_output(asked: ValidateSettings, key: str, folder: Path) -> None:
    """Raises ConfigError where the evidence file cannot be written; ``key`` names ``folder``, its place by default."""
    if asked.output is not None:
        check_place("validate.output", asked.output, "experiment=pro6000_validate")
        return
    why = unwritable(folder / EVIDENCE)
    if why is not None:
        allowed = f"a folder in which {EVIDENCE} can be written ({why}), or a file in validate.output"
        raise ConfigError(key, str(folder), allowed)


def _told(
    asked: ValidateSettings,
    machine: Machine,
    folder: Path,
    of: Run,
    found: Mapping[str, Value],
    measured: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes the evidence file and the table; the summary without its cells.

    Raises:
        Broken: the file cannot be written, though it could be before.
    """
    lines = judge(machine.predictions, found, of)
    path = folder / EVIDENCE if asked.output is None else Path(asked.output)
    result = verdict(lines)
    sys.stdout.write(table(lines))
    try:
        write_record(path, record(machine, asked.file, lines, found, measured, asked.note))
    except OSError as error:
        again = f"what was measured is stored: validate.judge={folder} writes it from there"
        raise Broken(f"{path} cannot be written ({error.strerror}); {again}") from None
    states = Counter(line.state for line in lines)
    summary: dict[str, Any] = {"run": str(folder), "evidence": str(path), "machine": machine.name, "verdict": result}
    summary |= {"lines": {state: states[state] for state in ("pass", "fail", "not checked")}}
    told = f"{states['fail']} of {len(lines)} lines failed, {states['not checked']} could not be checked"
    return summary if result == "pass" else summary | {"error": told}


@dataclass(frozen=True)
class Measured:
    """Every key's value as far as it was measured, cells by status, the signal that ended it early, and what of the
    configuration a sweep refused."""

    values: dict[str, Value]
    cells: Counter[str]
    stopped: str | None
    refused: ConfigError | None


def _measured(
    config: Mapping[str, Any],
    settings: Settings,
    asked: ValidateSettings,
    machine: Machine,
    folder: Path,
    host: tuple[dict[str, Any], int],
) -> Measured:
    """Raises ConfigError where the first sweep is refused."""
    found: dict[str, Value] = {}
    counts: dict[str, Counter[str]] = {}
    stopped: str | None = None
    refused: ConfigError | None = None

    def tiny() -> Iterator[dict[str, Value]]:
        """After each plan: what one has measured does not depend on the next."""
        nonlocal stopped
        for each in sweeps.tiny(config, machine.tiny, asked.prompts, asked.new_tokens):
            stopped = stopped or _sweep(each, folder, "tiny", counts)
            yield measure.of_tiny(folder / "tiny", settings.model)

    def rounds() -> Iterator[dict[str, Value]]:
        nonlocal stopped
        plan, engine = machine.rounds, settings.engine.name
        if plan is None:
            return
        if engine not in sweeps.DUMMY:
            raise EngineFailure(f"random weights without files are not known of {engine}")
        each = sweeps.rounds(config, plan, folder / "models", engine)
        stopped = stopped or _sweep(each, folder, "rounds", counts)
        yield measure.of_rounds(folder / "rounds")

    parts: dict[str, Callable[[], Iterator[dict[str, Value]]]] = {
        "host": lambda: iter([measure.of_host(*host)]),
        "tiny": tiny,
        "rounds": rounds,
    }
    for part, measured in parts.items():
        why = LEFT_OUT if part not in asked.parts else f"ended by {stopped}" if stopped else None
        if why is None:
            try:
                for values in measured():
                    found |= values
                continue
            except (EngineFailure, FileNotFoundError, ConfigError) as failure:
                if isinstance(failure, ConfigError):
                    if not counts:
                        raise  # nothing is measured yet that would be lost with it
                    refused = refused or failure
                why = str(failure)
                warn(f"{part}: {why}")
        found = _missing(machine, part, why) | found
    return Measured(found, sum(counts.values(), Counter()), stopped, refused)


def _missing(machine: Machine, part: str, why: str) -> dict[str, Value]:
    """The values of a part's lines where none was measured."""
    return {one.key: Missing(why) for one in machine.predictions if one.key.startswith(PREFIXES[part])}


def _sweep(config: Mapping[str, Any], folder: Path, name: str, counts: dict[str, Counter[str]]) -> str | None:
    """Runs a sweep into ``folder/name``; returns the signal that ended it. Cells of another plan there are kept."""
    place = {"output_dir": str(folder.parent), "name": folder.name, "run_id": name}
    summary = sweep.run_part({**config, **place}, name, whole=folder.name)
    counts[name] = Counter(summary["cells"])
    ended: str | None = summary.get("interrupted")
    return ended


def _host_facts(settings: Settings) -> dict[str, Any]:
    """Of a list of hosts, of the first that answers: all of one list hold the same card.

    Raises:
        ConfigError: none can be used.
        HostFailure: it is lost while it is asked.
    """
    refused = []
    for member in hosts_of(settings.host):
        try:
            return reached(member).facts()
        except ConfigError as error:
            if not settings.host.hosts:
                raise
            refused.append(f"{member.name}: {error}")
    names = [member.name for member in hosts_of(settings.host)]
    raise ConfigError("host.hosts", names, f"a host that answers ({'; '.join(refused)})")


def _gpu(settings: Settings, facts: Mapping[str, Any]) -> tuple[str | None, int]:
    """Name and number of the GPU that the engine will run on; None on a CPU.

    Raises:
        ConfigError: the host has no such GPU.
    """
    device = settings.engine.device
    if device == "cpu":
        return None, 0
    number = int(device.partition(":")[2] or 0)
    chosen = settings.host.gpus
    number = chosen[number] if chosen is not None and number < len(chosen) else number
    for card in facts.get("gpus") or []:
        if card.get("index") == number:
            return str(card["name"]), number
    raise ConfigError(
        "engine.device", device, f"cpu, or a GPU that host {settings.host.name} has; it shows none so numbered"
    )
