"""The host: its card, its memory, who else is there, its ports; its disk and clock as it tells them itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.doctor.findings import Finding
from experiments.hosts import differences
from experiments.settings import Settings
from runners.hosts import Host, HostConfig

MIB_PER_GIB = 1024.0


def card_findings(config: HostConfig, facts: Mapping[str, Any], cards: list[dict[str, Any]]) -> Iterator[Finding]:
    """The cards against what is configured of them, and who else computes there.

    What the configuration says otherwise is wrong; the rest only its owner can judge.
    """
    used = {**facts, "gpus": cards}
    for line in differences(config, used):
        if "host." in line:
            yield Finding("wrong", "gpu", line, "mend the card, or say in group host what it is")
        else:
            yield Finding("note", "gpu", line)
    for card in cards:
        limit = card.get("power_limit_w")
        told = "unknown" if limit is None else f"{limit:g} W"
        yield Finding(
            "ok", f"gpu {card['index']:g}", f"{card['name']}, driver {card.get('driver')}, power limit {told}"
        )


def memory_findings(card: Mapping[str, Any], needed_gib: float, share: float | None) -> Iterator[Finding]:
    """Free memory of a card. ``share``: of all its memory, that an engine wants free when it starts."""
    what, total, used = f"gpu {card['index']:g} memory", card.get("memory_total_mib"), card.get("memory_used_mib")
    if total is None or used is None:
        yield Finding("note", what, "the driver does not tell it")
        return
    free, whole = (total - used) / MIB_PER_GIB, total / MIB_PER_GIB
    if free < needed_gib:
        todo = "free it, or take a smaller model, batch or engine.flags.kv_cache_gib"
        yield Finding("wrong", what, f"{free:.1f} of {whole:.1f} GiB free, about {needed_gib:.1f} needed", todo)
    elif share is not None and free < share * whole:
        todo = f"free it, or say engine.flags.gpu_memory_utilization={int(100 * free / whole) / 100:g}"
        yield Finding("wrong", what, f"{free:.1f} of {whole:.1f} GiB free, the engine wants {share:.0%}", todo)
    else:
        yield Finding("ok", what, f"{free:.1f} of {whole:.1f} GiB free, about {needed_gib:.1f} needed")


def port_findings(host: Host, settings: Settings) -> Iterator[Finding]:
    """A port for the server on the host, and the way to it from here."""
    port = host.claim_port(settings.engine.port)
    with host.forward(port) as here:
        way = "" if host.is_local else f", through a tunnel from {here} here"
    which = f"{port} is free" if settings.engine.port is not None else "any free one, as engine.port=null asks"
    yield Finding("ok", "port", f"{which}{way}")


def cards_of(settings: Settings, facts: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Finding]]:
    """The cards that the configuration uses, and what is wrong with the choice."""
    device = settings.engine.device
    if device == "cpu":
        return [], [Finding("ok", "gpu", "none needed: engine.device=cpu")]
    found = {int(card["index"]): card for card in facts.get("gpus") or []}
    if not found:
        todo = "engine.device=cpu, or a host whose nvidia-smi works"
        return [], [Finding("missing", "gpu", "nvidia-smi shows none", todo)]
    wanted = settings.host.gpus or sorted(found)
    first, count = int(device.partition(":")[2] or 0), int(settings.engine.flags.get("tensor_parallel") or 1)
    chosen = list(wanted)[first : first + count]
    absent = [str(index) for index in chosen if index not in found]
    cards = [found[index] for index in chosen if index in found]
    if absent or len(chosen) < count:
        said = f"engine.device={device} with tensor_parallel {count} asks for GPUs that are not there"
        todo = f"host.gpus among {', '.join(map(str, sorted(found)))}"
        return cards, [Finding("missing", "gpu", said, todo)]
    return cards, []


def disk_findings(told: Mapping[str, Any], least_gib: float, download_gib: float) -> Iterator[Finding]:
    """Free space by place; models that are yet to come need theirs where models are kept."""
    for place, free in told["free_gib"].items():
        needed = least_gib + (download_gib if place == told["cache"] else 0.0)
        said = f"{place}: {free:.1f} GiB free, {needed:.1f} needed"
        if free < needed:
            yield Finding("wrong", "disk", said, "free some, or move it (host.workdir, output_dir, HF_HOME)")
        else:
            yield Finding("ok", "disk", said)


def clock_finding(there_s: float, here_s: float, most_s: float) -> Finding:
    """The host's wall clock against ours, both in seconds since the epoch."""
    ahead = there_s - here_s
    said = f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} ours"
    if abs(ahead) > most_s:
        return Finding("wrong", "clock", said, "set it (NTP): times in logs and files would not fit together")
    return Finding("ok", "clock", said)
