"""The verb: every check, a line each, on standard output; exit status 0 only where a sweep could start."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ddbench.errors import ConfigError
from experiments.asked import each_alone
from experiments.doctor import engine, host_script, machine, models, plain
from experiments.doctor.findings import BAD, Finding, checked
from experiments.engines import engine_of
from experiments.hosts import check_python, check_workdir, hosts_of
from experiments.settings import Settings, load_settings
from experiments.store import RunFolder
from experiments.typed import build
from experiments.workloads import load_workload
from runners import environments
from runners.base import EngineFailure
from runners.hosts import Host, open_host
from runners.reference import python_on

SCRIPT_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class DoctorSettings:
    """``free_disk_gib``: what must be free on every disk beside models to be downloaded. ``clock_s``: how far a host's
    clock may be off ours."""

    free_disk_gib: float
    clock_s: float

    def __post_init__(self) -> None:
        for name in ("free_disk_gib", "clock_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"doctor.{name}", getattr(self, name), "a number >= 0")


def run(config: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Prints the findings and returns them; with an ``error`` where a sweep could not start.

    Raises:
        ConfigError: a configuration that is none; what it says of the world is a finding.
    """
    asked = build(DoctorSettings, config.get("doctor") or {}, "doctor")
    settings = load_settings({key: value for key, value in config.items() if key != "doctor"}, run_id)
    found = []
    for finding in findings(settings, asked):
        sys.stdout.write(finding.line + "\n")
        sys.stdout.flush()
        found.append(finding)
    states = Counter(finding.state for finding in found)
    counts = {state: states[state] for state in ("ok", "note", *BAD)}
    summary: dict[str, Any] = {
        "host": settings.host.name,
        "engine": settings.engine.name,
        "model": settings.model.name,
        "cells": {},
    }
    summary |= {"checks": counts, "findings": [asdict(finding) for finding in found if finding.state != "ok"]}
    bad = sum(states[state] for state in BAD)
    return summary | {"error": f"{bad} of {len(found)} checks: a sweep could not start"} if bad else summary


def findings(settings: Settings, asked: DoctorSettings) -> Iterator[Finding]:
    """All of them, in an order in which each needs those before it."""
    yield from checked("workload", lambda: _workload(settings))
    yield from checked("output", lambda: _output(settings))
    members = hosts_of(settings.host)
    for member in members:
        for finding in _of_host(replace(settings, host=member), asked):
            yield finding if len(members) == 1 else replace(finding, said=f"{member.name}: {finding.said}")


def _of_host(settings: Settings, asked: DoctorSettings) -> Iterator[Finding]:
    """What is on one host; of one that cannot be reached, that alone."""
    with closing(open_host(settings.host)) as host:
        reached = list(checked("host", lambda: _reached(host)))
        yield from reached
        if any(finding.state in BAD for finding in reached):
            yield Finding("note", "host", "nothing else on it was looked at")
            return
        yield from _on_host(host, settings, asked)


def _on_host(host: Host, settings: Settings, asked: DoctorSettings) -> Iterator[Finding]:
    """Each cause is said once: what needs our scripts on the host is left out where they cannot run or be put there."""
    no_python = list(checked("host python", lambda: _needed(check_python, host)))
    no_scripts = no_python or list(checked("workdir", lambda: _needed(check_workdir, host)))
    yield from no_scripts
    looked = _Environment(host, settings)
    yield from checked("python", looked.findings)
    if looked.ready:
        yield from checked("strategies", lambda: engine.strategy_findings(settings))
    else:
        yield Finding("note", "strategies", "not looked at without the engine")
    if no_scripts:
        key = "host.python" if no_python else "host.workdir"
        yield Finding("note", "gpu and port", f"not looked at without a {key} of use")
    else:
        yield from checked("gpu", lambda: _cards(host, settings))
        yield from checked("port", lambda: machine.port_findings(host, settings))
    python = looked.python or (None if no_python else host.config.python)
    yield from checked("models", lambda: _told(host, settings, asked, python))


def _needed(check: Callable[[Host], None], host: Host) -> Iterator[Finding]:
    """Nothing where ``check`` is content; what it raises becomes a finding."""
    check(host)
    yield from ()


class _Environment:
    """The engine's environment. ``python``: its interpreter on the host, or this one here, for our own questions; None
    where there is none. ``ready``: whether the engine is there, as far as has been looked."""

    def __init__(self, host: Host, settings: Settings) -> None:
        self.host, self.settings = host, settings
        self.python = sys.executable if host.is_local else None
        self.ready = False

    def findings(self) -> Iterator[Finding]:
        if self.settings.engine.url is not None:
            self.ready = True  # a server of somebody else's: it is asked for its version by the strategies
        elif self.settings.engine.name in ("reference", "published"):
            yield from self._built_in()
        else:
            yield from self._own()

    def _built_in(self) -> Iterator[Finding]:
        python = sys.executable if self.host.is_local else python_on(self.host.config)
        found = list(engine.built_in_findings(self.host, python, self.settings.engine.device))
        if self.settings.engine.name == "published":
            found += engine.checkout_findings(self.settings)
        self.ready = all(finding.state not in BAD for finding in found)
        self.python = python if self.ready else self.python
        yield from found

    def _own(self) -> Iterator[Finding]:
        asked = self.settings.engine
        sources = list(engine.checkout_findings(self.settings)) if asked.name == "sglang" else []
        yield from sources
        try:
            python = environments.find_python(self.host, asked.name, asked.device, asked.python)
        except ConfigError as error:
            yield Finding("missing", "python", f"{error.key}={error.value!r}", f"needed: {error.allowed}")
            return
        facts = environments.ask(self.host, asked.name, python)
        there = facts["version"] is not None and facts["torch"] is not None
        if asked.device != "cpu" and there:
            facts = environments.ask(self.host, asked.name, python, cuda=True)
        self.python, self.ready = python, there and all(finding.state not in BAD for finding in sources)
        yield from engine.environment_findings(self.host, self.settings, python, facts)


def _workload(settings: Settings) -> Iterator[Finding]:
    for each in each_alone(settings):
        workload = load_workload(each.workload)
        yield Finding("ok", "workload", f"{each.workload.name}: {len(workload.prompts)} prompts")


def _output(settings: Settings) -> Iterator[Finding]:
    RunFolder(Path(settings.output_dir) / settings.name / settings.run_id).check_writable()
    yield Finding("ok", "output", f"{settings.output_dir} can be written")


def _reached(host: Host) -> Iterator[Finding]:
    if host.is_local:
        yield Finding("ok", "host", "this machine")
        return
    host.connect()
    yield Finding("ok", "host", f"{host.config.name} ({host.config.destination}) answers, and its key is known")


def _cards(host: Host, settings: Settings) -> Iterator[Finding]:
    facts = host.facts()
    cards, problems = machine.cards_of(settings, facts)
    yield from problems
    yield from machine.card_findings(settings.host, facts, cards)
    flags = _flags(settings)
    yield from models.states_findings(settings, flags)
    share = flags.get("gpu_memory_utilization") if settings.engine.name == "vllm" else None
    for card in cards:
        yield from machine.memory_findings(card, models.needed_gib(settings, flags), share)


def _flags(settings: Settings) -> dict[str, Any]:
    """Flags as they come out for the plan; as they are given where they do not come out, which is said elsewhere."""
    try:
        return engine_of(settings.engine.name).flags(settings, [])
    except ConfigError:
        return settings.engine.flags


def _told(host: Host, settings: Settings, asked: DoctorSettings, python: str | None) -> Iterator[Finding]:
    """Clock, models and disk: what the host tells in one answer, of ``python`` or, for None, of its coreutils."""
    parts = models.parts(settings)
    here = {role for role, part in parts.items() if models.travelling(part) or settings.model.kind == "random"}
    away = {role: part for role, part in parts.items() if role not in here}
    places = [str(Path(settings.output_dir).absolute())] if host.is_local else [host.config.workdir]
    began = time.time()
    if python is None:
        told = plain.look(host, len(away), places)
    else:
        told = _answer(
            host, python, {"models": [[part.source, part.revision] for part in away.values()], "places": places}
        )
    ended = time.time()
    if not host.is_local:
        yield machine.clock_finding(told["time"], (began + ended) / 2, asked.clock_s)
    for role in sorted(here):
        yield from models.local_findings(settings, role, parts[role], not host.is_local)
    name = "this machine" if host.is_local else host.config.name
    for (role, part), each in zip(away.items(), told["models"], strict=True):
        yield models.told_finding(role, part, each, name)
    download = sum(each.get("gib", 0.0) for each in told["models"])
    yield from machine.disk_findings(told, asked.free_disk_gib, download)


def _answer(host: Host, python: str, order: dict[str, Any]) -> dict[str, Any]:
    """Of :mod:`experiments.doctor.host_script`, run there. Raises EngineFailure where it gives none."""
    script = Path(host_script.__file__)
    done = host.run([python, "-", json.dumps(order)], timeout_s=SCRIPT_TIMEOUT_S, input=script.read_bytes())
    try:
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise EngineFailure(f"{python} on {host.config.name} gives no answer ({done.said})") from None
    return told
