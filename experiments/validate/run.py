"""The verb: what a machine was predicted to do, measured, judged line by line, and written down as evidence."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments import sweep
from experiments.hosts import hosts_of, reached
from experiments.progress import say, warn
from experiments.settings import Settings, load_settings, one_workload
from experiments.typed import build
from experiments.validate import measure, sweeps
from experiments.validate.predict import write
from experiments.validate.predictions import COMMITTED, Machine, choose, read_machines
from experiments.validate.verdict import Line, Missing, Run, Value, judge, verdict
from runners.base import EngineFailure
from runners.machine import machine_facts

PARTS = ("host", "tiny", "rounds")
PREFIXES = {  # of the keys that a part measures
    "host": ("host.",),
    "tiny": ("cells.tiny.", "backend.", "lossless_share.", "largest_gap", "acceptance_length.", "program_gib."),
    "rounds": ("cells.rounds.", "weights_gib.", "kv_tokens.", "beyond_plan_gib.", "round_ms.", "round_ratio."),
}
NOTES = (
    "Predictions were written before the measurement. A line is not checked where nothing could be measured, or where "
    "the prediction was made for another engine or number of prompts; the verdict is then not a pass."
)


@dataclass(frozen=True)
class ValidateSettings:
    """Group ``validate``; each is described in ``conf/experiment/pro6000_validate.yaml``."""

    machine: str | None
    parts: tuple[str, ...]
    prompts: int | None
    new_tokens: int | None
    predictions: str | None
    output: str | None
    predict: bool
    evidence: str
    evidence_sglang: str

    def __post_init__(self) -> None:
        for name in ("prompts", "new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"validate.{name}", value, "an integer >= 1, or null")
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ConfigError("validate.parts", list(self.parts), f"some of {', '.join(PARTS)}")

    @property
    def file(self) -> Path:
        return COMMITTED if self.predictions is None else Path(self.predictions)


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Measures and judges; the summary has the verdict, and an ``error`` unless that is a pass.

    Raises:
        ConfigError: a setting that cannot be, a machine that is not in the predictions file, or what a sweep refuses.
    """
    asked = build(ValidateSettings, config.get("validate") or {}, "validate")
    if asked.predict:
        write(asked.file, Path(asked.evidence), Path(asked.evidence_sglang))
        return {"predictions": str(asked.file), "cells": {}}
    plain = {key: value for key, value in config.items() if key != "validate"}
    settings = load_settings(plain, run_id)
    one_workload(settings, "predictions are of one workload")
    if settings.model.name != "tiny":
        raise ConfigError("model", settings.model.name, "tiny: predictions are of ddbench's own pairs alone")
    machines = read_machines(asked.file)
    facts = _host_facts(settings)
    gpu, number = _gpu(settings, facts)
    machine = choose(machines, asked.machine, gpu, settings.engine.name)
    if machine is None:
        seen = f"{settings.engine.name} on {gpu or 'a CPU'}"
        known = "; ".join(f"{name}: {each.what}" for name, each in machines.items())
        raise ConfigError("validate.machine", None, f"a machine that something was predicted for, not {seen} ({known})")
    say(f"{machine.name}: {len(machine.predictions)} predictions for {machine.what}")
    folder = Path(settings.output_dir) / settings.name / settings.run_id
    found, counts, stopped = _measured(plain, settings, asked, machine, folder, (facts, number))
    tiny = machine.tiny
    of = Run(settings.engine.name, asked.prompts or tiny.prompts, asked.new_tokens or tiny.new_tokens)
    lines = judge(machine.predictions, found, of)
    path = folder / "evidence.json" if asked.output is None else Path(asked.output)
    result = verdict(lines)
    _write(path, _record(machine, asked, lines, facts, gpu, found))
    sys.stdout.write(_table(lines))
    states = Counter(line.state for line in lines)
    summary: dict[str, Any] = {"run": str(folder), "evidence": str(path), "machine": machine.name, "verdict": result}
    summary |= {"lines": {state: states[state] for state in ("pass", "fail", "not checked")}, "cells": dict(counts)}
    if stopped is not None:
        return summary | {"interrupted": stopped}
    told = f"{states['fail']} of {len(lines)} lines failed, {states['not checked']} could not be checked"
    return summary if result == "pass" else summary | {"error": told}


def _measured(
    config: Mapping[str, Any],
    settings: Settings,
    asked: ValidateSettings,
    machine: Machine,
    folder: Path,
    host: tuple[dict[str, Any], int],
) -> tuple[dict[str, Value], Counter[str], str | None]:
    """Every key's value as far as it was measured, cells by status, and the signal that ended it early."""
    found: dict[str, Value] = {}
    counts: dict[str, Counter[str]] = {}
    stopped: str | None = None

    def tiny() -> dict[str, Value]:
        nonlocal stopped
        for each in sweeps.tiny(config, machine.tiny, asked.prompts, asked.new_tokens):
            stopped = stopped or _sweep(each, folder, "tiny", counts)
        return measure.of_tiny(folder / "tiny", settings.model)

    def rounds() -> dict[str, Value]:
        nonlocal stopped
        plan, engine = machine.rounds, settings.engine.name
        if plan is None:
            return {}
        if engine not in sweeps.DUMMY:
            raise EngineFailure(f"random weights without files are not known of {engine}")
        each = sweeps.rounds(config, plan, folder / "models", engine)
        stopped = stopped or _sweep(each, folder, "rounds", counts)
        return measure.of_rounds(folder / "rounds")

    parts: dict[str, Callable[[], dict[str, Value]]] = {
        "host": lambda: measure.of_host(*host),
        "tiny": tiny,
        "rounds": rounds,
    }
    for part, measured in parts.items():
        why = "left out by validate.parts" if part not in asked.parts else f"ended by {stopped}" if stopped else None
        if why is None:
            try:
                found |= measured()
                continue
            except (EngineFailure, FileNotFoundError, ConfigError) as failure:
                if isinstance(failure, ConfigError) and not counts:
                    raise  # nothing is measured yet that would be lost with it
                why = str(failure)
                warn(f"{part}: {why}")
        keys = [one.key for one in machine.predictions if one.key.startswith(PREFIXES[part])]
        found |= {key: Missing(why) for key in keys}
    return found, sum(counts.values(), Counter()), stopped


def _sweep(config: Mapping[str, Any], folder: Path, name: str, counts: dict[str, Counter[str]]) -> str | None:
    """Runs a sweep into ``folder/name``; returns the signal that ended it. Cells of an earlier plan there are kept."""
    place = {"output_dir": str(folder.parent), "name": folder.name, "run_id": name}
    summary = sweep.run({**config, **place}, name)
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


def _record(
    machine: Machine,
    asked: ValidateSettings,
    lines: list[Line],
    facts: Mapping[str, Any],
    gpu: str | None,
    found: Mapping[str, Value],
) -> dict[str, Any]:
    """The evidence file: what every evidence has, and a line a prediction."""
    packages = machine_facts()
    return {
        "command": shlex.join(["python", "-m", "ddbench", *sys.argv[1:]]),
        "date": datetime.now(UTC).date().isoformat(),
        "gpu": gpu,
        "driver": facts.get("driver"),
        "versions": {"python": packages["python"], **packages["packages"]},
        "git_commit": packages["git_commit"],
        "predictions": asked.file.name,
        "machine": machine.name,
        "verdict": verdict(lines),
        "lines": [asdict(line) for line in lines],
        "measured": {key: value for key, value in found.items() if not isinstance(value, Missing)},
        "notes": NOTES,
    }


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def _table(lines: list[Line]) -> str:
    rows = []
    for line in lines:
        seen = (
            "-"
            if line.measured is None
            else f"{line.measured:.4g}"
            if isinstance(line.measured, float)
            else line.measured
        )
        why = f"  ({line.reason})" if line.reason and line.state == "not checked" else ""
        rows.append(f"{line.state:<12} {line.key:<44} {seen:>12}  predicted {line.predicted}{why}\n")
    return "".join(rows)
