"""What a host without a Python of use tells all the same, by the coreutils that every host has."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from runners.base import EngineFailure
from runners.hosts import Host

KIB_PER_GIB = 2**20
FREE = re.compile(r"\s\d+\s+\d+\s+(\d+)\s+\d+%\s")  # of df -Pk (POSIX): blocks, used, available, share


def look(host: Host, models: int, places: list[str]) -> dict[str, Any]:
    """As :func:`experiments.doctor.host_script.look` answers; ``models``: how many are not looked for.

    Raises:
        EngineFailure: the host has no such programs either.
    """
    now = host.run(["date", "+%s"])
    if not now.ok:
        raise EngineFailure(f"date on {host.config.name}: {now.said}")
    return {
        "time": float(now.stdout.split()[-1]),
        "free_gib": {place: free_gib(host, place) for place in places},
        "cache": None,
        "models": [{"state": "unknown", "why": "no Python of use there"}] * models,
    }


def free_gib(host: Host, place: str) -> float:
    """Of the nearest folder above that exists, for this user. Raises EngineFailure where ``df`` does not tell it."""
    path = PurePosixPath(host.expand(place))
    near = next(each for each in (path, *path.parents) if each == each.parent or host.run(["test", "-e", str(each)]).ok)
    done = host.run(["df", "-Pk", str(near)])
    found = FREE.search(done.stdout)
    if found is None:
        raise EngineFailure(f"df {near} on {host.config.name}: {done.said}")
    return int(found[1]) / KIB_PER_GIB
