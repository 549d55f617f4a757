"""The model pair: each part present where the engine runs, or to be had there, at its pinned revision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ddbench.errors import ConfigError
from experiments.doctor.findings import Finding
from experiments.engines import engine_of
from experiments.estimate import GIB, cache_bytes_per_token, target_states_gib
from experiments.models import resolve
from experiments.progress import counted
from experiments.settings import DrafterSettings, Settings, TargetSettings
from experiments.shapes import drafter_of, grid
from experiments.workloads import asset_path
from runners.sglang.speculation import drafted_tokens

Part = TargetSettings | DrafterSettings


def parts(settings: Settings) -> dict[str, Part]:
    """Target and drafters that the asked strategies need, by role."""
    found: dict[str, Part] = {"target": settings.model.target}
    for strategy in settings.sweep.strategy:
        role, drafter = drafter_of(strategy, settings.model)
        if drafter is not None:
            found[role] = drafter
    return found


def travelling(part: Part) -> bool:
    """Whether a part is a folder here: it is checked here, wherever the engine runs."""
    return asset_path(part.source).is_dir()


def local_findings(settings: Settings, role: str, part: Part, sent: bool) -> Iterator[Finding]:
    """A part that is a folder here, or random weights made on the spot. ``sent``: the host gets it when it needs it."""
    what = f"model {role}"
    if settings.model.kind == "random":
        yield Finding("ok", what, f"random weights of seed {settings.model.random_seed}, made when they are needed")
        return
    try:
        _, revisions = resolve(settings.model, ["target", role])
    except ConfigError as error:
        yield Finding("missing", what, f"{error.key}={error.value!r}", f"needed: {error.allowed}")
        return
    folder = asset_path(part.source)
    if not any(folder.glob("*.safetensors")) and "dummy" not in (settings.engine.flags.get("extra_args") or ()):
        yield Finding("missing", what, f"{folder} has no weights", "needed: a checkpoint with safetensors")
        return
    way = ", sent to the host when it is needed" if sent else ""
    yield Finding("ok", what, f"{folder}, {revisions[role]}{way}")


def told_finding(role: str, part: Part, told: Mapping[str, Any], on: str) -> Finding:
    """A part as the host tells of it (:mod:`experiments.doctor.host_script`)."""
    what, at = f"model {role}", f"{part.source} at {part.revision or 'no pinned revision'}"
    if told["state"] == "absent":
        fetch = f"`hf download {part.source}{f' --revision {part.revision}' if part.revision else ''}`"
        return Finding(
            "missing", what, f"{at}: not on {on}, nor to be had ({told['why']})", f"{fetch} where there is a net"
        )
    if told["state"] == "unknown":
        return Finding(
            "note", what, f"{at}: not looked for on {on} ({told['why']})", "make the engine's environment first"
        )
    if told["state"] == "folder":
        return Finding("ok", what, f"{part.source} on {on}")
    if _commit(part.revision) and not told["revision"].startswith(str(part.revision)):
        return Finding("wrong", what, f"{at}: {on} has {told['revision']}", "the revision that the model pins")
    where = f"in the cache of {on}" if told["state"] == "cached" else f"to be downloaded, {told['gib']:.1f} GiB"
    if part.revision is None:
        todo = f"model.{role}.revision={told['revision']} pins it"
        return Finding("note", what, f"{at}: {where}", todo)
    return Finding("ok", what, f"{at}: {where}")


def _commit(revision: str | None) -> bool:
    """Whether a revision is a commit's hash, and not a branch or a tag."""
    return revision is not None and re.fullmatch(r"[0-9a-f]{7,64}", revision) is not None


def needed_gib(settings: Settings, flags: Mapping[str, Any]) -> float:
    """Weights of the largest arm, its cache and its recurrent states, in GiB: what a card must have free at least."""
    size = 4 if settings.engine.dtype == "float32" else 2
    model = settings.model
    drafters = [part.params for role, part in parts(settings).items() if role != "target"]
    weights = size * (model.target.params + max(drafters, default=0)) / GIB
    cache = flags.get("kv_cache_gib")
    if cache is None:
        tokens = max(settings.sweep.batch_size) * (settings.load.max_new_tokens + 128)
        layers = model.target.kv_layers or model.target.layers
        cache = tokens * cache_bytes_per_token(model.target, layers, size) / GIB + states_gib(settings, flags)
    return weights + float(cache)


def states_gib(settings: Settings, flags: Mapping[str, Any]) -> float:
    """Recurrent states of the largest arm at the largest batch, in GiB; 0.0 of a dense target."""
    requests = flags.get("max_running_requests") or max(settings.sweep.batch_size)
    size = 4 if settings.engine.dtype == "float32" else 2
    return target_states_gib(
        settings.model.target, settings.engine.name, requests, widest(settings, flags), size, flags
    )


def widest(settings: Settings, flags: Mapping[str, Any]) -> int:
    """Most tokens of a sequence in a verify pass of a shape that can be run, root counted; 0 where none drafts.

    An engine that is not there refuses what each version of it does.
    """
    engine, model = engine_of(settings.engine.name), settings.model
    asked = replace(settings, dry_run=True)
    most = 0
    for strategy in settings.sweep.strategy:
        role, drafter = drafter_of(strategy, model)
        if not role or drafter is None:
            continue
        for shape, reason in grid(strategy, settings.sweep, model, settings.strategy.force_spine):
            if reason is None and engine.refuse(asked, strategy, shape, dict(flags)) is None:
                most = max(most, 1 + drafted_tokens(strategy, shape.depth, shape.nodes, drafter.block_size))
    return most


def states_findings(settings: Settings, flags: Mapping[str, Any]) -> Iterator[Finding]:
    """What the recurrent states of a hybrid target take (docs/hybrid.md); nothing of a dense one."""
    target, what = settings.model.target, "recurrent states"
    if target.attention != "hybrid":
        return
    if target.delta_nets is None:
        yield Finding("note", what, "not counted", "say model.target.delta_nets and kv_layers (docs/hybrid.md)")
        return
    requests = flags.get("max_running_requests") or max(settings.sweep.batch_size)
    asked = f"{counted(requests, 'request')}, {counted(widest(settings, flags), 'token')} of each in a verify pass"
    yield Finding("ok", what, f"{states_gib(settings, flags):.2f} GiB for {asked}")
