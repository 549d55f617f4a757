"""The host of a run: chosen of a list, reached at the door, told in ``environment.json``, compared with its config."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ddbench.errors import ConfigError
from experiments.holding import holding
from experiments.progress import say, warn
from experiments.typed import build
from runners.gpu_memory import Gpu
from runners.hosts import Host, HostConfig, HostFailure, host_of
from runners.hosts.config import check_lists

# Whether files can be made in a folder, or where it would be made; nothing is left there. Runs on the host.
WRITE = """
import os, sys, tempfile
place = sys.argv[1] or os.sep
try:
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    tempfile.TemporaryFile(dir=place).close()
except OSError as error:
    sys.exit(f"{place}: {error.strerror}")
"""
NO_PROGRAM = 127  # exit status of a command that cannot be found
WATT = 1.0
# Of the facts of a host: what differs from one minute to the next, and of its GPUs.
FLEETING = ("disk_free_gib", "neighbours")
FLEETING_OF_GPU = (
    "memory_used_mib",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "pcie_generation",
    "temperature_c",
)


def hosts_of(config: HostConfig) -> tuple[HostConfig, ...]:
    """The hosts of a list, each with what it says itself over what is said around it; of no list, the one host.

    An entry is a group of keys of ``host``, or an address alone. Without a name of its own it is named by its address.

    Raises:
        ConfigError: an entry that cannot be, or two of the same name.
    """
    if config.member is not None:
        raise ConfigError("host.member", config.member, "null: which host of a list is used is found at the start")
    if not config.hosts:
        return (config,)
    around = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    found = tuple(_member(around, entry, f"host.hosts[{at}]") for at, entry in enumerate(config.hosts))
    for at, host in enumerate(found):
        if host.name in [each.name for each in found[:at]]:
            raise ConfigError(f"host.hosts[{at}].name", host.name, "a name that no other host of the list has")
    return found


def reached(config: HostConfig) -> Host:
    """The host of a configuration, which answers and takes our files.

    Raises:
        ConfigError: it does not, or shows another key, or refuses ours, or has no such ``host.python``, or nothing can
            be written into its ``host.workdir``.
    """
    host = host_of(config)
    try:
        host.connect()
        check_python(host)
        check_workdir(host)
    except HostFailure as failure:
        raise ConfigError("host.address", config.address, f"a host that answers ({failure})") from None
    return host


def check_python(host: Host) -> None:
    """Raises ConfigError where ``host.python`` of a host behind ssh is no Python that can run our scripts."""
    if host.is_local:
        return
    python, which = host.config.python, host.config.member or host.config.name
    done = host.run([python, "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 9))"])
    if not done.ok:
        why = "there is no such program" if done.rc == NO_PROGRAM else done.said
        raise ConfigError("host.python", python, f"a Python >= 3.9 on host {which} ({why})")


def check_workdir(host: Host) -> None:
    """Raises ConfigError where nothing can be written into ``host.workdir`` of a host behind ssh."""
    if host.is_local:
        return
    said = unwritable(host, host.config.python, host.path())
    if said is not None:
        which = host.config.member or host.config.name
        raise ConfigError("host.workdir", host.config.workdir, f"a folder on host {which} to write into ({said})")


def unwritable(host: Host, python: str, folder: str) -> str | None:
    """Why nothing can be written into a folder of a host, which may not exist yet; None where something can."""
    done = host.run([python, "-I", "-c", WRITE, folder])
    return None if done.ok else done.said


@contextlib.contextmanager
def claimed(config: HostConfig, dry_run: bool = False) -> Iterator[HostConfig]:
    """The host to work on: of a list, the first that answers and that no other process works on, held meanwhile.

    It keeps the name of the list, which is what its cells are named by; ``member`` says which one it is. A dry run
    takes the first of the list and asks nobody.

    Raises:
        ConfigError: there is none, or a file that is needed to reach it is not here.
    """
    if not config.hosts:
        config.check_files()
        yield config
        return
    if dry_run:
        first = hosts_of(config)[0]
        first.check_files()
        yield replace(first, name=config.name, member=first.name)
        return
    refused = []
    with TemporaryDirectory(prefix="ddbench-claim-") as scratch, contextlib.ExitStack() as held:
        for member in hosts_of(config):
            chosen = replace(member, name=config.name, member=member.name)
            try:
                held.enter_context(holding(reached(chosen), Path(scratch) / f"{member.name}.log"))
            except (ConfigError, HostFailure) as error:
                refused.append(f"{member.name}: {error}")
                warn(f"host {member.name} is left out: {error}")
                continue
            say(f"host {member.name} of {config.name}")
            yield chosen
            return
        raise ConfigError("host.hosts", [each.name for each in hosts_of(config)], f"a free host ({'; '.join(refused)})")


def environment(config: HostConfig, used: Sequence[Gpu] | None = None) -> dict[str, Any]:
    """What ``environment.json`` says of the host: ``host``, what is so at every start; ``host_state``, what was so at
    this one; ``host_warnings``, where it is not as configured. For a host behind ssh, its ``gpus`` and ``driver`` take
    the place of this machine's. ``used``: the GPUs that warnings are about; None for all that may be used.

    Raises:
        HostFailure: it is lost.
    """
    host = host_of(config)
    facts = host.facts()
    lasting = {name: value for name, value in facts.items() if name not in (*FLEETING, "gpus")}
    gpus = [
        {name: value for name, value in gpu.items() if name not in FLEETING_OF_GPU} for gpu in facts.get("gpus") or []
    ]
    state = {name: facts.get(name) for name in FLEETING}
    now = [{name: gpu.get(name) for name in ("index", *FLEETING_OF_GPU)} for gpu in facts.get("gpus") or []]
    told: dict[str, Any] = {
        "host": {"name": config.name, "member": config.member, "kind": config.kind, **lasting, "gpus": gpus},
        "host_state": {**state, "gpus": now},
        "host_warnings": differences(config, facts, used),
    }
    return told if host.is_local else {**told, "gpus": gpus, "driver": facts.get("driver")}


def differences(config: HostConfig, facts: Mapping[str, Any], used: Sequence[Gpu] | None = None) -> list[str]:
    """Where a host is not as ``host`` says, or is not ours alone; a sentence each. A value that is null on either side
    is compared with nothing. ``used``: of these GPUs alone; for None, or with a name that no GPU has (a part of
    one, say), of all that ``host.gpus`` names."""
    gpus = [gpu for gpu in facts.get("gpus") or [] if config.gpus is None or gpu.get("index") in config.gpus]
    unknown = [name for name in used or () if isinstance(name, str) and not any(_is(gpu, name) for gpu in gpus)]
    if used is not None and not unknown:
        gpus = [gpu for gpu in gpus if any(_is(gpu, each) for each in used)]
    lines = [line for gpu in gpus for line in _of_gpu(config, gpu)]
    if config.gpus is not None:
        seen = [gpu.get("index") for gpu in facts.get("gpus") or []]
        lines += [f"there is no GPU {index} (host.gpus)" for index in config.gpus if index not in seen]
    expected = config.gpu_name or config.sku
    if expected and not facts.get("gpus"):
        lines.append(f"nvidia-smi shows no GPU there, where {expected} is expected")
    uuids = {gpu.get("uuid"): gpu.get("index") for gpu in gpus}
    for each in facts.get("neighbours") or []:
        if each.get("uuid") in uuids:
            held = "" if each.get("memory_mib") is None else f", {each['memory_mib']:g} MiB"
            lines.append(
                f"process {each['pid']} ({each.get('name') or 'unknown'}{held}) computes on GPU {uuids[each['uuid']]} "
                "too: times are those of a shared card"
            )
    return lines


def _is(gpu: Mapping[str, Any], which: Gpu) -> bool:
    """Whether that is its number, or the beginning of its UUID, which is how CUDA takes one."""
    if isinstance(which, int):
        return bool(gpu.get("index") == which)
    return str(gpu.get("uuid")).lower().startswith(which.lower())


def sku_of(name: str) -> str | None:
    """Which edition of a card a driver's name for it says: Max-Q, Server or Workstation; None if it says none."""
    return next((sku for sku in ("Max-Q", "Server", "Workstation") if sku.lower() in name.lower()), None)


def _of_gpu(config: HostConfig, gpu: Mapping[str, Any]) -> Iterator[str]:
    name, which = str(gpu.get("name") or ""), f"GPU {gpu.get('index')}"
    if config.gpu_name and name and config.gpu_name.lower() not in name.lower():
        yield f"{which} is {name}, and host.gpu_name={config.gpu_name}"
    if config.sku and name and sku_of(name) not in (None, config.sku):
        yield f"{which} is the {sku_of(name)} edition ({name}), and host.sku={config.sku}"
    limit = gpu.get("power_limit_w")
    if config.power_limit_w and limit is not None and abs(limit - config.power_limit_w) > WATT:
        yield f"{which} is limited to {limit:g} W, and host.power_limit_w={config.power_limit_w:g}"
    clock = gpu.get("memory_clock_max_mhz")
    if config.memory_clock_mhz and clock is not None and clock != config.memory_clock_mhz:
        said = f"host.memory_clock_mhz={config.memory_clock_mhz}"
        yield f"{which} has a memory clock of {clock:g} MHz at most, and {said}"
    width, widest = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    if width and widest and width < widest:
        yield f"{which} has {width:g} of {widest:g} PCIe lanes"


def _member(around: Mapping[str, Any], entry: Any, key: str) -> HostConfig:
    given = {"address": entry} if isinstance(entry, str) else entry
    if not isinstance(given, Mapping):
        raise ConfigError(key, entry, "an address, or a group of keys of host")
    for inner in ("hosts", "member"):
        if inner in given:
            raise ConfigError(f"{key}.{inner}", given[inner], "no list inside a list")
    check_lists(given, key)
    name = given.get("name", given.get("address"))
    try:
        return build(HostConfig, {**around, "hosts": (), "name": name, **given}, key)
    except ConfigError as error:
        if error.key.startswith(key):
            raise
        raise ConfigError(f"{key}.{error.key.removeprefix('host.')}", error.value, error.allowed) from None
