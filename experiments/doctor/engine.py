"""The engine: its environment, our plug-in in it, and what it can run of what is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ddbench.errors import ConfigError
from experiments.doctor.findings import Finding
from experiments.engines import engine_of
from experiments.engines.sglang import checkout_of
from experiments.progress import counted
from experiments.settings import Settings
from experiments.shapes import Shape, drafter_of, grid
from runners import environments
from runners.hosts import Host
from runners.published import checkout as published

BUILT_IN = ("torch", "transformers", "safetensors", "tokenizers")
# Runs under the interpreter that is looked at: device and names, to their versions and the GPUs that torch sees.
LOOK = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[2:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
found["gpus"] = None
if sys.argv[1] != "cpu" and found["torch"]:
    import torch
    found["gpus"] = torch.cuda.device_count()
print(json.dumps(found))
"""


def built_in_findings(host: Host, python: str, device: str) -> Iterator[Finding]:
    """The reference engine's environment: this one, or on another host any that has what it imports."""
    done = host.run([python, "-c", LOOK, device, *BUILT_IN], timeout_s=environments.TIMEOUT_S)
    if not done.ok:
        allowed = "a working Python >= 3.11 (host.pythons.reference names one)"
        yield Finding("missing", "python", f"{python}: {done.said}", allowed)
        return
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    absent = [name for name in BUILT_IN if found[name] is None]
    if absent:
        todo = "`make env` makes an environment here; elsewhere install them"
        yield Finding("missing", "python", f"{python} has no {', '.join(absent)}", todo)
        return
    yield Finding("ok", "python", f"{python}: {', '.join(f'{name} {found[name]}' for name in BUILT_IN[:2])}")
    if found["gpus"] == 0:
        yield Finding("missing", "engine gpu", f"torch in {python} sees no GPU", "a torch built for this driver")


def checkout_findings(settings: Settings) -> Iterator[Finding]:
    """The checkout that ``engine.checkout`` names: whether it can be used, which state of it, under which licence.

    SGLang's is looked at without an interpreter that has SGLang.
    """
    try:
        found = checkout_of(settings) if settings.engine.name == "sglang" else published.look(settings.engine.checkout)
        said = str(found) if settings.engine.name == "sglang" else engine_of(settings.engine.name).version(settings)
    except ConfigError as error:
        yield Finding("missing", "checkout", str(error), "git clone it, and name the folder in engine.checkout")
        return
    if found is not None:
        yield Finding("ok", "checkout", f"{said}; licence file: {found.licence or 'none'}")


def environment_findings(host: Host, settings: Settings, python: str, facts: dict[str, Any]) -> Iterator[Finding]:
    """An engine's own environment: the engine, the GPUs that its torch sees, our plug-in."""
    engine = settings.engine
    name = environments.NAMES.get(engine.name, engine.name)
    if facts["version"] is None or facts["torch"] is None:
        absent = name if facts["version"] is None else "torch"
        line = environments.bootstrap_line(host.config.name, engine.name, engine.device)
        yield Finding("missing", "engine", f"{python} has no {absent}", f"`{line}` makes an environment with it")
        return
    yield Finding("ok", "engine", f"{name} {facts['version']}, torch {facts['torch']} in {python}")
    if engine.device != "cpu" and not facts.get("gpus"):
        yield Finding("missing", "engine gpu", f"torch in {python} sees no GPU", "a torch built for this driver")
    if engine.checkout is not None or "ddtree" not in settings.sweep.strategy:
        return
    problem = environments.plugin_problem(facts)
    if problem is None:
        yield Finding("ok", "plug-in", f"registered, and this checkout's: {environments.our_hash()}")
        return
    made = python == environments.default_python(host, engine.name, engine.device)
    line = environments.bootstrap_line(host.config.name, engine.name, engine.device, None if made else python)
    yield Finding("missing" if "no ddbench" in problem else "wrong", "plug-in", problem, f"`{line}`")


def strategy_findings(settings: Settings) -> Iterator[Finding]:
    """What the engine can run of each strategy. What it cannot, or the model has no drafter for, are cells with status
    ``unsupported``, which keep a sweep from starting only where nothing is left."""
    engine, model = engine_of(settings.engine.name), settings.model
    general = engine.refuse_all(settings)
    if general is not None:
        yield Finding("wrong", "strategies", "the engine can run none of them", general)
        return
    shapes = {name: _shapes(settings, name) for name in settings.sweep.strategy}
    flags = engine.flags(settings, [(name, shape) for name, some in shapes.items() for shape in some])
    runs = 0
    for name, some in shapes.items():
        role, drafter = drafter_of(name, model)
        if role and drafter is None:
            todo = f"another model, or a sweep.strategy without {name}"
            yield Finding("note", f"strategy {name}", f"unsupported: model {model.name} has no {role} drafter", todo)
            continue
        reasons = [reason for shape in some if (reason := engine.refuse(settings, name, shape, flags)) is not None]
        can, said = len(some) - len(reasons), counted(len(some), "shape")
        runs += can
        if not some:
            yield Finding("note", f"strategy {name}", "the grid has no shape of it that can be")
        elif not reasons:
            yield Finding("ok", f"strategy {name}", said if name != "autoregressive" else "runs")
        else:
            some_can = f"{can} of {said}; the rest is " if can else ""
            yield Finding("note", f"strategy {name}", f"{some_can}unsupported: {reasons[0]}")
    if not runs:
        todo = "another engine, model or sweep; the lines above say why"
        yield Finding("missing", "strategies", "nothing of what is asked for can be run", todo)


def _shapes(settings: Settings, strategy: str) -> list[Shape]:
    found = grid(strategy, settings.sweep, settings.model, settings.strategy.force_spine)
    return [shape for shape, reason in found if reason is None]
